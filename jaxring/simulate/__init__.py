"""Plays schedules in virtual time on described clusters.

`play` runs the tables that the engines run, message by message: LogGP's overheads for every message, and links shared
fairly. `clusters` describes machines, and `simulate` puts both together.
"""

from __future__ import annotations
