"""An audit that attacks what clients exchange.

Attacks are on membership, neighbouring data sets, pictures, labels, owners and changes.
"""

from fedmix.privacy.audit.findings import Finding, findings
from fedmix.privacy.audit.grid import Cell, Grid, Noise, audit

__all__ = ["Cell", "Finding", "Grid", "Noise", "audit", "findings"]
