"""RCuckoo: cuckoo hashing with dependent hashes, locked rows, and repair after dead clients."""
