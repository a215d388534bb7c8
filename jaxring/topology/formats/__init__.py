"""Networks that others describe, as fabrics: ASTRA-sim's network files, and InfraGraph."""
