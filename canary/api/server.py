"""The HTTP server: uvicorn, which first lets go of what would keep it waiting, such as event streams that never end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

import uvicorn


class Server(uvicorn.Server):
    """A uvicorn server.

    Args:
        closing: called when it begins to stop, before it waits for open connections.
    """

    def __init__(self, config: uvicorn.Config, closing: Sequence[Callable[[], None]]) -> None:
        super().__init__(config)
        self._closing = closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let go, then stop as ever."""
        for let_go in self._closing:
            let_go()
        await super().shutdown(sockets)
