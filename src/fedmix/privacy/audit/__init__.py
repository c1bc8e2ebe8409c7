"""An audit that attacks what clients exchange.

Attacks are on membership, neighbouring data sets, pictures, labels, owners and changes.
"""

from fedmix.privacy.audit.findings import Finding, findings
from fedmix.privacy.audit.grid import Attacked, Grid, Noise, audit

__all__ = ["Attacked", "Finding", "Grid", "Noise", "audit", "findings"]
