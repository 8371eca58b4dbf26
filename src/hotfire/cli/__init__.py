"""The hotfire command: thin commands over the other rooms."""
