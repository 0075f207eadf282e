# SPDX-License-Identifier: Apache-2.0
"""CustomOp: a layer whose forward is chosen by platform, and which others may replace.

Owns the two registries (in-tree names, out-of-tree replacements) and the one initialisation of
such a layer. Knows no layer; what an op computes is defined in `vllm.ir`.
"""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from torch import nn
from typing_extensions import Self

from vllm.platforms import current_platform

_Op = TypeVar("_Op", bound="type[CustomOp]")

_ROCM_METHODS = ("forward_hip", "forward_cuda")

op_registry: "dict[str, type[CustomOp]]" = {}
op_registry_oot: "dict[str, type[CustomOp]]" = {}


class CustomOp(nn.Module):
    """Base of replaceable layers.

    1. Creating an instance of class X creates the replacement registered for the name X, if any.
    2. `__init__` runs once: with several bases it is reached through the chain of `super()`.
    3. `forward` is the method for this platform, bound at construction; every platform without
       its own method runs `forward_native`.
    """

    name: ClassVar[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        replacement = op_registry_oot.get(cls.__name__, cls)
        if not issubclass(replacement, cls):
            # Python would then skip __init__ and hand out a half-made layer.
            raise TypeError(f"{replacement.__name__} replaces {cls.__name__}: derive it from that")
        return super().__new__(replacement)

    def __init__(self, *, enforce_enable: bool = False, compile_native: bool = False) -> None:
        """Set the layer up.

        Args:
            enforce_enable: use the platform's method even where `enabled()` is false.
            compile_native: upstream's switch for compiling the native body; nothing is compiled
                here, so only False is accepted.

        Raises:
            RuntimeError: the layer is initialised already. A second run of `nn.Module.__init__`
                would silently drop every parameter, buffer and submodule registered so far.
        """
        if "_parameters" in self.__dict__:
            raise RuntimeError(
                f"{type(self).__name__} is initialised already; call super().__init__() once and "
                "no base's __init__ directly"
            )
        if compile_native:
            raise ValueError("compile_native=True: this engine compiles nothing; pass False")
        super().__init__()
        self._forward_method = self.dispatch_forward(enforce_enable)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward_method(*args, **kwargs)

    def forward_native(self, *args: Any, **kwargs: Any) -> Any:
        """The platform-independent body."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward_native")

    def forward_cpu(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    def forward_cuda(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    def forward_hip(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_cuda(*args, **kwargs)

    def forward_oot(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    def dispatch_forward(self, enforce_enable: bool = False) -> Callable[..., Any]:
        """The method that `forward` runs on this platform."""
        if not (enforce_enable or self.enabled()):
            return self.forward_native
        own = {"cpu": ("forward_cpu",), "cuda": ("forward_cuda",), "rocm": _ROCM_METHODS}
        candidates = own.get(current_platform().name.lower(), ("forward_oot",))
        # A method that is only inherited from here ends in forward_native: bind that directly,
        # since the detour would be paid in every layer of every step.
        method = next(
            (m for m in candidates if getattr(type(self), m) is not getattr(CustomOp, m)),
            "forward_native",
        )
        chosen: Callable[..., Any] = getattr(self, method)
        return chosen

    @classmethod
    def enabled(cls) -> bool:
        """Whether the platform's method is used; subclasses may decide otherwise."""
        return True

    @classmethod
    def register(
        cls, name: str, dynamic_arg_dims: dict[str, Any] | None = None
    ) -> Callable[[_Op], _Op]:
        """Class decorator: give an op its name.

        Args:
            name: unique name.
            dynamic_arg_dims: accepted for upstream's sake; nothing is compiled here.

        Raises:
            ValueError: the name is taken.
        """
        del dynamic_arg_dims

        def decorate(op_cls: _Op) -> _Op:
            if name in op_registry:
                raise ValueError(f"op {name!r} is registered already by {op_registry[name]}")
            op_cls.name = name
            op_registry[name] = op_cls
            return op_cls

        return decorate

    @classmethod
    def register_oot(
        cls, _decorated_op_cls: _Op | None = None, name: str | None = None
    ) -> "_Op | Callable[[_Op], _Op]":
        """Replace a class from outside the tree: `@RMSNorm.register_oot` or `(name="RMSNorm")`.

        Args:
            _decorated_op_cls: the replacement, when used without parentheses.
            name: name of the class to replace; by default the class this is called on.

        Raises:
            ValueError: that class has a replacement already.
        """
        target = name or cls.__name__

        def decorate(op_cls: _Op) -> _Op:
            if target in op_registry_oot:
                raise ValueError(
                    f"{target} is replaced already by {op_registry_oot[target].__name__}"
                )
            op_registry_oot[target] = op_cls
            return op_cls

        return decorate if _decorated_op_cls is None else decorate(_decorated_op_cls)
