# SPDX-License-Identifier: Apache-2.0
"""A thread that waits for many connections."""

import selectors
import threading


class SelectorThread:
    """`with` calls run() in a thread. It ends when `stop` is set; then all registered connections are closed."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        raise NotImplementedError

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()
