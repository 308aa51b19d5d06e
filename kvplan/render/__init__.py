"""How a page looks: on a terminal, as Markdown, as HTML."""
