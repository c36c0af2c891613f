"""Models that may be published although they learned from private rows, each with what that costs.

Differential privacy bounds what a published model tells of any one row: `dp_network` (DP-SGD), `dp_boosting`
(explainable boosting). `encrypted` publishes nothing and answers questions that it cannot read. `membership`
measures what an attacker who sees a published model can tell. Knows rows and models. Does not know clients.
"""
