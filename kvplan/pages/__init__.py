"""One module for each kind of document: what a reader wants to know of it, in which order."""
