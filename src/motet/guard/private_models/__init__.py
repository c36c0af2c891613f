"""Private models: models that may be published although they learned from private rows.

Differential privacy bounds what a published model reveals about any one row: `dp_network` (DP-SGD), `dp_boosting`
(explainable boosting). `encrypted` publishes no model; it scores encrypted rows. `membership` measures what an
attacker learns from a published model. Knows rows and models. Does not know clients.
"""
