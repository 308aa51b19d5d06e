"""One module a command: it parses its options, imports one stage, calls it and answers."""
