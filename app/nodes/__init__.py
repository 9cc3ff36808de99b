"""What authors of handlers need, and nothing else.

    from app.nodes import HandlerError, Step, handler

    @handler("mycompany/greet", settings=GreetSettings)
    def greet(step: Step) -> dict:
        return step.input | {"text": f"Hello {step.input['name']}"}

A handler is a plain function, or ``async def``; it takes a :class:`Step` and returns the packet that goes on, or
``None`` to pass its input on. Whatever it raises fails the node. Put its module into ``NODE_MODULES`` or behind an
entry point in ``rolecall.nodes``. :mod:`app.nodes.testing` runs one handler alone.
"""

from app.nodes.api import Code, HandlerError, HandlerSettings, handler
from app.nodes.step import Step

__all__ = ["Code", "HandlerError", "HandlerSettings", "Step", "handler"]
