"""One small interface to local disks, Google Cloud Storage and S3."""

from shardmill.schemas.storage.base import Entry as Entry
from shardmill.schemas.storage.base import RandomReader as RandomReader
from shardmill.schemas.storage.base import Storage as Storage
from shardmill.schemas.storage.base import WritableFile as WritableFile
from shardmill.schemas.storage.base import absolute as absolute
from shardmill.schemas.storage.base import from_relative as from_relative
from shardmill.schemas.storage.base import is_link as is_link
from shardmill.schemas.storage.base import join as join
from shardmill.schemas.storage.base import scheme_of as scheme_of
from shardmill.schemas.storage.base import to_relative as to_relative
from shardmill.schemas.storage.registry import open_storage as open_storage
