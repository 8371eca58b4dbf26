"""One module per journey; importing this package registers every handler."""

from hotfire.broker.handlers import admin as admin
from hotfire.broker.handlers import clients as clients
from hotfire.broker.handlers import offsets as offsets
from hotfire.broker.handlers import pull as pull
from hotfire.broker.handlers import query as query
from hotfire.broker.handlers import send as send
