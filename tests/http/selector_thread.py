# SPDX-License-Identifier: Apache-2.0
"""Threads that serve or hold many connections until their `with` ends."""

import selectors
import threading


class WithThread:
    """`with` calls run() in a thread. It ends when `stop` is set; then close() is called."""

    def __init__(self):
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        raise NotImplementedError

    def close(self):
        raise NotImplementedError

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        self.close()


class SelectorThread(WithThread):
    """Closes all connections that are registered at its end."""

    def __init__(self):
        super().__init__()
        self.selector = selectors.DefaultSelector()

    def close(self):
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()
