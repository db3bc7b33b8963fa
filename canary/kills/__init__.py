"""The kill switch of one process: its board in memory and on disk, and what brings it into the store.

Shared by whatever serves, schedules or kills; it knows no HTTP server, and taking a kill waits for no store and no peer.
"""
