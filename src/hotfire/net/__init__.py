"""The only room with sockets: accept, deadlines, write buffers, request and reply pairing."""
