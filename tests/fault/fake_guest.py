"""Stands in for qemu in tests of the rack: an agent that answers without a machine.

    fake_guest.py SOCKET [SECONDS]

It is ready after so many seconds. It ends when it is told to, when its socket is closed, or after a
minute.
"""

import json
import os
import signal
import socket
import sys
import time


def main() -> None:
    signal.alarm(60)
    with socket.socket(socket.AF_UNIX) as talk:
        talk.connect(sys.argv[1])
        # Not one file for both: to write drops what was read ahead.
        with talk.makefile("r") as file, talk.makefile("w") as answers:

            def say(**found: object) -> None:
                answers.write(json.dumps(found) + "\n")
                answers.flush()

            time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
            say(event="ready", pid=os.getpid())
            for line in file:
                asked = json.loads(line)
                number, do = asked.pop("number"), asked.pop("do")
                if do == "end":
                    return
                if do == "mumble":
                    answers.write("no json\n")
                    answers.flush()
                elif do == "refuse":
                    say(number=number, ok=False, error="StoreFull: there is no room")
                elif do != "sleep":
                    say(event="ended", slot=asked.get("slot"), error="")
                    say(number=number, ok=True, asked=asked)


if __name__ == "__main__":
    main()
