"""One module per journey; importing this package registers every handler."""

from hotfire.broker.handlers import assignment as assignment
from hotfire.broker.handlers import cleaning as cleaning
from hotfire.broker.handlers import clients as clients
from hotfire.broker.handlers import groups as groups
from hotfire.broker.handlers import members as members
from hotfire.broker.handlers import offsets as offsets
from hotfire.broker.handlers import pull as pull
from hotfire.broker.handlers import query as query
from hotfire.broker.handlers import reply as reply
from hotfire.broker.handlers import reset as reset
from hotfire.broker.handlers import send as send
from hotfire.broker.handlers import sendback as sendback
from hotfire.broker.handlers import settings as settings
from hotfire.broker.handlers import stats as stats
from hotfire.broker.handlers import timers as timers
from hotfire.broker.handlers import topics as topics
from hotfire.broker.handlers import transactions as transactions
