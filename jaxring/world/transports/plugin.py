"""An NCCL network plugin that the process has loaded; JAXRING_NET=plugin:NAME asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.world.transports.record import Own, Transport, load

if TYPE_CHECKING:
    from jaxring.settings import Settings
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native


class Plugin(Transport):
    name = "plugin"
    words = "network plugin"
    preference = 20

    def found(self, native: Native) -> str:
        del native
        return "NCCL's network plugins"

    def load(self, own: Own) -> str:
        name = own.settings.plugin
        return load(own.native, self.name, name, f"JAXRING_NET=plugin:{name}") if name else ""

    def joins(self, settings: Settings, own: ProcessInfo, peer: ProcessInfo) -> bool:
        del own, peer
        return bool(settings.plugin)


TRANSPORT = Plugin()
