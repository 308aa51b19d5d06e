"""The policy of a plan as a ledger: what it allows, what it forbids, and what that gives up."""

from __future__ import annotations

from kvplan.documents import Plan, Policy
from kvplan.page import Block, Row, Section, Text
from kvplan.pages import parts
from kvplan.units import show_duration, show_percent, show_tokens

_SHARE = {
    "all": "a request may reuse anybody's blocks",
    "tenant": "a request may reuse its own tenant's blocks only",
    "none": "no request may reuse another's blocks",
}
_ROUTING = {
    "affinity": "to the replica that holds the prefix",
    "session": "to the replica of their session",
    "round-robin": "in turn, whatever is cached where",
}
_ADMIT = {"all": "whatever is computed", "second-use": "what is computed a second time"}


def ledger(plan: Plan) -> Section:
    """What the policy says of each tier and of sharing, and the price of each restriction."""
    blocks: list[Block] = [parts.table("of|rule", [Row(cells=line) for line in _rules(plan.policy)])]
    rows = [
        (
            one.policy,
            show_percent(one.hit_ratio),
            show_tokens(one.hit_tokens_per_hour),
            show_duration(one.gpu_s_per_hour),
        )
        for one in plan.policy_costs
    ]
    if rows:
        columns = "restriction|>hits given up|>tokens an hour|>GPU time an hour"
        blocks.append(parts.table(columns, rows, title="Given up because of policy, one replica"))
        most = max(plan.policy_costs, key=lambda one: (one.hit_ratio, one.gpu_s_per_hour))
        reading = f"The most is given up by {most.policy}: {show_percent(most.hit_ratio)} of input tokens in hits."
        if not most.hit_ratio and not most.gpu_s_per_hour:
            reading = "The restrictions of the policy give up no hit and no GPU time."
    else:
        reading = "No restriction of the policy was found to give up hits."
        blocks.append(Text(text="Hits given up because of policy: none."))
    return Section(name="policy", heading="Policy ledger", reading=reading, blocks=tuple(blocks))


def _rules(policy: Policy) -> list[tuple[str, str]]:
    kept = "no time limit" if policy.ttl_s is None else f"dropped {show_duration(policy.ttl_s)} after the last use"
    disk = "forbidden: nothing may be kept on persistent storage" if policy.forbid_disk else "allowed"
    if not policy.forbid_disk:
        disk += f", holds {_ADMIT[policy.disk_admission]}"
    rules = [
        (
            "host memory",
            "forbidden" if policy.forbid_host else f"allowed, {show_percent(policy.headroom_ratio)} stays free",
        ),
        ("disk", disk),
        ("retention", kept),
        ("sharing", _SHARE[policy.share]),
        ("replicas", f"{policy.replicas}, requests go {_ROUTING[policy.routing]}" if policy.replicas > 1 else "one"),
    ]
    if policy.restart_every_s is not None:
        rules.append(("restarts", f"every {show_duration(policy.restart_every_s)}"))
    if policy.slo_ttft_s is not None:
        rules.append(("time to first token", f"at most {show_duration(policy.slo_ttft_s)}"))
    if policy.growth != 1:
        rules.append(("demand", f"{policy.growth:g} times the log's"))
    return rules
