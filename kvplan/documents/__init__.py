"""Everything that crosses a stage border.

Each stage takes and returns frozen structs from this package and nothing else; a document is one of
them in an envelope, saved as one JSON file. Names carry the unit (`_bytes`, `_tokens`, `_s`,
`_bytes_per_s`, `_ratio`), numbers are in base units, integers stay integers, and `None` means unknown,
never zero. Fields are only ever added; a change of meaning raises the schema number (see files.py, which reads
and writes them).
"""

from __future__ import annotations

from kvplan.documents.common import (
    Bytes as Bytes,
)
from kvplan.documents.common import (
    Count as Count,
)
from kvplan.documents.common import (
    Document as Document,
)
from kvplan.documents.common import (
    Evidence as Evidence,
)
from kvplan.documents.common import (
    Finding as Finding,
)
from kvplan.documents.common import (
    GpuSpec as GpuSpec,
)
from kvplan.documents.common import (
    LayerKind as LayerKind,
)
from kvplan.documents.common import (
    Provenance as Provenance,
)
from kvplan.documents.common import (
    Rate as Rate,
)
from kvplan.documents.common import (
    Ratio as Ratio,
)
from kvplan.documents.common import (
    Recurrence as Recurrence,
)
from kvplan.documents.common import (
    Seconds as Seconds,
)
from kvplan.documents.common import (
    Severity as Severity,
)
from kvplan.documents.common import (
    T as T,
)
from kvplan.documents.common import (
    Tokens as Tokens,
)
from kvplan.documents.comparison import (
    Estimated as Estimated,
)
from kvplan.documents.comparison import (
    Grade as Grade,
)
from kvplan.documents.comparison import (
    LiveComparison as LiveComparison,
)
from kvplan.documents.comparison import (
    MeasuredArm as MeasuredArm,
)
from kvplan.documents.comparison import (
    MeasuredRun as MeasuredRun,
)
from kvplan.documents.comparison import (
    MeasuredTimes as MeasuredTimes,
)
from kvplan.documents.comparison import (
    Paired as Paired,
)
from kvplan.documents.comparison import (
    PairedPoint as PairedPoint,
)
from kvplan.documents.comparison import (
    Replay as Replay,
)
from kvplan.documents.comparison import (
    ReplayRun as ReplayRun,
)
from kvplan.documents.comparison import (
    ReplaySchedule as ReplaySchedule,
)
from kvplan.documents.estimate import (
    BytesAt as BytesAt,
)
from kvplan.documents.estimate import (
    CacheGroup as CacheGroup,
)
from kvplan.documents.estimate import (
    Concurrency as Concurrency,
)
from kvplan.documents.estimate import (
    EngineValue as EngineValue,
)
from kvplan.documents.estimate import (
    Estimate as Estimate,
)
from kvplan.documents.estimate import (
    EstimateOptions as EstimateOptions,
)
from kvplan.documents.estimate import (
    Estimates as Estimates,
)
from kvplan.documents.estimate import (
    GpuMemory as GpuMemory,
)
from kvplan.documents.estimate import (
    Growth as Growth,
)
from kvplan.documents.estimate import (
    KvCost as KvCost,
)
from kvplan.documents.estimate import (
    LengthMix as LengthMix,
)
from kvplan.documents.estimate import (
    LlamaCppOptions as LlamaCppOptions,
)
from kvplan.documents.estimate import (
    LogFit as LogFit,
)
from kvplan.documents.estimate import (
    LogPoint as LogPoint,
)
from kvplan.documents.estimate import (
    MediaTokens as MediaTokens,
)
from kvplan.documents.estimate import (
    MixClass as MixClass,
)
from kvplan.documents.estimate import (
    MixLoad as MixLoad,
)
from kvplan.documents.estimate import (
    PageKind as PageKind,
)
from kvplan.documents.estimate import (
    Parallel as Parallel,
)
from kvplan.documents.estimate import (
    Switches as Switches,
)
from kvplan.documents.export import (
    ConfigCheck as ConfigCheck,
)
from kvplan.documents.export import (
    ConfigForm as ConfigForm,
)
from kvplan.documents.export import (
    ConfigPart as ConfigPart,
)
from kvplan.documents.export import (
    Export as Export,
)
from kvplan.documents.export import (
    Knob as Knob,
)
from kvplan.documents.model import (
    CatalogueModel as CatalogueModel,
)
from kvplan.documents.model import (
    Compute as Compute,
)
from kvplan.documents.model import (
    Layer as Layer,
)
from kvplan.documents.model import (
    LayerCache as LayerCache,
)
from kvplan.documents.model import (
    Model as Model,
)
from kvplan.documents.model import (
    ModelRef as ModelRef,
)
from kvplan.documents.model import (
    StateTensor as StateTensor,
)
from kvplan.documents.model import (
    Weights as Weights,
)
from kvplan.documents.observation import (
    Configured as Configured,
)
from kvplan.documents.observation import (
    GaugeRead as GaugeRead,
)
from kvplan.documents.observation import (
    MetricSource as MetricSource,
)
from kvplan.documents.observation import (
    Moment as Moment,
)
from kvplan.documents.observation import (
    Observation as Observation,
)
from kvplan.documents.observation import (
    PlanCheck as PlanCheck,
)
from kvplan.documents.observation import (
    QuantileRead as QuantileRead,
)
from kvplan.documents.observation import (
    ServingSystem as ServingSystem,
)
from kvplan.documents.observation import (
    TierHits as TierHits,
)
from kvplan.documents.observation import (
    TierLoss as TierLoss,
)
from kvplan.documents.observation import (
    TierTransfer as TierTransfer,
)
from kvplan.documents.observation import (
    Waiting as Waiting,
)
from kvplan.documents.plan import (
    Against as Against,
)
from kvplan.documents.plan import (
    Alternative as Alternative,
)
from kvplan.documents.plan import (
    Benefit as Benefit,
)
from kvplan.documents.plan import (
    BreakEven as BreakEven,
)
from kvplan.documents.plan import (
    Budget as Budget,
)
from kvplan.documents.plan import (
    BudgetItem as BudgetItem,
)
from kvplan.documents.plan import (
    Budgets as Budgets,
)
from kvplan.documents.plan import (
    Changed as Changed,
)
from kvplan.documents.plan import (
    Confidence as Confidence,
)
from kvplan.documents.plan import (
    Cost as Cost,
)
from kvplan.documents.plan import (
    EngineSettings as EngineSettings,
)
from kvplan.documents.plan import (
    KeepFor as KeepFor,
)
from kvplan.documents.plan import (
    Limit as Limit,
)
from kvplan.documents.plan import (
    NodeBytes as NodeBytes,
)
from kvplan.documents.plan import (
    Plan as Plan,
)
from kvplan.documents.plan import (
    PlanInputs as PlanInputs,
)
from kvplan.documents.plan import (
    Policy as Policy,
)
from kvplan.documents.plan import (
    PolicyCost as PolicyCost,
)
from kvplan.documents.plan import (
    Prices as Prices,
)
from kvplan.documents.plan import (
    PriceView as PriceView,
)
from kvplan.documents.plan import (
    Reserve as Reserve,
)
from kvplan.documents.plan import (
    Sensitivity as Sensitivity,
)
from kvplan.documents.plan import (
    TierPoint as TierPoint,
)
from kvplan.documents.plan import (
    WarmUp as WarmUp,
)
from kvplan.documents.plan import (
    WhatIf as WhatIf,
)
from kvplan.documents.probe import (
    BlockDevice as BlockDevice,
)
from kvplan.documents.probe import (
    CgroupLevel as CgroupLevel,
)
from kvplan.documents.probe import (
    Contention as Contention,
)
from kvplan.documents.probe import (
    Disk as Disk,
)
from kvplan.documents.probe import (
    GpuDevice as GpuDevice,
)
from kvplan.documents.probe import (
    Host as Host,
)
from kvplan.documents.probe import (
    KvBlock as KvBlock,
)
from kvplan.documents.probe import (
    KvMove as KvMove,
)
from kvplan.documents.probe import (
    KvPieces as KvPieces,
)
from kvplan.documents.probe import (
    Link as Link,
)
from kvplan.documents.probe import (
    ModelConfig as ModelConfig,
)
from kvplan.documents.probe import (
    NumaNode as NumaNode,
)
from kvplan.documents.probe import (
    Pinning as Pinning,
)
from kvplan.documents.probe import (
    Pipeline as Pipeline,
)
from kvplan.documents.probe import (
    Prefill as Prefill,
)
from kvplan.documents.probe import (
    PrefillPoint as PrefillPoint,
)
from kvplan.documents.probe import (
    Probe as Probe,
)
from kvplan.documents.probe import (
    ProbeOptions as ProbeOptions,
)
from kvplan.documents.requests import (
    PathTree as PathTree,
)
from kvplan.documents.requests import (
    Requests as Requests,
)
from kvplan.documents.requests import (
    Texts as Texts,
)
from kvplan.documents.residency import (
    Candidate as Candidate,
)
from kvplan.documents.residency import (
    CoAccess as CoAccess,
)
from kvplan.documents.residency import (
    LimitSearch as LimitSearch,
)
from kvplan.documents.residency import (
    Machine as Machine,
)
from kvplan.documents.residency import (
    MemorySplit as MemorySplit,
)
from kvplan.documents.residency import (
    ModelResidency as ModelResidency,
)
from kvplan.documents.residency import (
    PolicyRun as PolicyRun,
)
from kvplan.documents.residency import (
    Residency as Residency,
)
from kvplan.documents.residency import (
    ResidencyPolicy as ResidencyPolicy,
)
from kvplan.documents.residency import (
    ResidencySpan as ResidencySpan,
)
from kvplan.documents.residency import (
    ResidentModel as ResidentModel,
)
from kvplan.documents.residency import (
    SharedMemory as SharedMemory,
)
from kvplan.documents.residency import (
    SplitPoint as SplitPoint,
)
from kvplan.documents.residency import (
    Swap as Swap,
)
from kvplan.documents.residency import (
    WaitSpread as WaitSpread,
)
from kvplan.documents.simulation import (
    Arm as Arm,
)
from kvplan.documents.simulation import (
    ArmResult as ArmResult,
)
from kvplan.documents.simulation import (
    EngineModel as EngineModel,
)
from kvplan.documents.simulation import (
    Fault as Fault,
)
from kvplan.documents.simulation import (
    LinkModel as LinkModel,
)
from kvplan.documents.simulation import (
    LoadPoint as LoadPoint,
)
from kvplan.documents.simulation import (
    Loop as Loop,
)
from kvplan.documents.simulation import (
    Phase as Phase,
)
from kvplan.documents.simulation import (
    Quantile as Quantile,
)
from kvplan.documents.simulation import (
    RatePoint as RatePoint,
)
from kvplan.documents.simulation import (
    Simulation as Simulation,
)
from kvplan.documents.simulation import (
    Slice as Slice,
)
from kvplan.documents.simulation import (
    Slots as Slots,
)
from kvplan.documents.simulation import (
    Spread as Spread,
)
from kvplan.documents.simulation import (
    SustainableRate as SustainableRate,
)
from kvplan.documents.simulation import (
    TierUse as TierUse,
)
from kvplan.documents.workload import (
    Arrivals as Arrivals,
)
from kvplan.documents.workload import (
    Comparison as Comparison,
)
from kvplan.documents.workload import (
    CurvePoint as CurvePoint,
)
from kvplan.documents.workload import (
    Drift as Drift,
)
from kvplan.documents.workload import (
    Granularity as Granularity,
)
from kvplan.documents.workload import (
    HitRates as HitRates,
)
from kvplan.documents.workload import (
    Hits as Hits,
)
from kvplan.documents.workload import (
    HotSet as HotSet,
)
from kvplan.documents.workload import (
    Interval as Interval,
)
from kvplan.documents.workload import (
    Isolation as Isolation,
)
from kvplan.documents.workload import (
    Load as Load,
)
from kvplan.documents.workload import (
    LogSource as LogSource,
)
from kvplan.documents.workload import (
    Percentiles as Percentiles,
)
from kvplan.documents.workload import (
    PolicyCurve as PolicyCurve,
)
from kvplan.documents.workload import (
    PrefixClass as PrefixClass,
)
from kvplan.documents.workload import (
    Replicas as Replicas,
)
from kvplan.documents.workload import (
    ReuseSource as ReuseSource,
)
from kvplan.documents.workload import (
    SampledPoint as SampledPoint,
)
from kvplan.documents.workload import (
    Sampling as Sampling,
)
from kvplan.documents.workload import (
    ServiceModel as ServiceModel,
)
from kvplan.documents.workload import (
    SharedPrefix as SharedPrefix,
)
from kvplan.documents.workload import (
    Tenant as Tenant,
)
from kvplan.documents.workload import (
    Tier as Tier,
)
from kvplan.documents.workload import (
    WorkingSet as WorkingSet,
)
from kvplan.documents.workload import (
    Workload as Workload,
)
