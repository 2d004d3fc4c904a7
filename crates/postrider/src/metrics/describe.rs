//! What every metric is called, what it means and which labels it has: noted as it is registered, for reference pages, and
//! for whoever checks alerts and dashboards. A metric without samples is not rendered, so the text does not tell.

use std::fmt::Debug;

use prometheus_client::{
    encoding::EncodeMetric,
    metrics::{MetricType, family::Family, info::Info},
    registry::{Registry, Unit},
};

use super::PREFIX;

/// One metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The name by which it is asked for: a counter's ends in `_total`. A histogram has `_bucket`, `_sum` and `_count`
    /// behind it.
    pub name: String,
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: &'static str,
    /// What it means.
    pub help: String,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

/// The labels of a family.
pub(super) trait LabelNames {
    const NAMES: &[&str];
}

/// A family, for its labels.
pub(super) trait Labelled {
    const LABELS: &[&str];
}

impl<L: LabelNames, M, C> Labelled for Family<L, M, C> {
    const LABELS: &[&str] = L::NAMES;
}

/// Registers and describes.
pub(super) struct Adder<'r> {
    registry: &'r mut Registry,
    pub(super) described: Vec<Description>,
}

impl<'r> Adder<'r> {
    pub(super) fn new(registry: &'r mut Registry) -> Self {
        Self { registry, described: Vec::new() }
    }

    /// Facts that do not change.
    pub(super) fn info(&mut self, name: &str, help: &str, facts: &[(&'static str, &'static str)]) {
        self.registry.register(name, help, Info::new(facts.to_vec()));
        self.note(name, help, MetricType::Info, &["version"]);
    }

    pub(super) fn plain<M>(&mut self, name: &str, help: &str) -> M
    where
        M: Clone + Default + Debug + EncodeMetric + Labelled + Send + Sync + 'static,
    {
        let metric = M::default();
        self.note(name, help, metric.metric_type(), M::LABELS);
        self.registry.register(name, help, metric.clone());
        metric
    }

    pub(super) fn seconds<M>(&mut self, name: &str, help: &str) -> M
    where
        M: Clone + Default + Debug + EncodeMetric + Labelled + Send + Sync + 'static,
    {
        self.timed(name, help, M::default())
    }

    pub(super) fn bytes<M>(&mut self, name: &str, help: &str) -> M
    where
        M: Clone + Default + Debug + EncodeMetric + Labelled + Send + Sync + 'static,
    {
        let metric = M::default();
        self.note(&format!("{name}_bytes"), help, metric.metric_type(), M::LABELS);
        self.registry.register_with_unit(name, help, Unit::Bytes, metric.clone());
        metric
    }

    pub(super) fn timed<M>(&mut self, name: &str, help: &str, metric: M) -> M
    where
        M: Clone + Debug + EncodeMetric + Labelled + Send + Sync + 'static,
    {
        self.note(&format!("{name}_seconds"), help, metric.metric_type(), M::LABELS);
        self.registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
        metric
    }

    fn note(&mut self, name: &str, help: &str, kind: MetricType, labels: &'static [&'static str]) {
        let (kind, suffix) = match kind {
            MetricType::Counter => ("counter", "_total"),
            MetricType::Gauge => ("gauge", ""),
            MetricType::Histogram => ("histogram", ""),
            MetricType::Info => ("info", "_info"),
            MetricType::Unknown => ("unknown", ""),
        };
        let name = format!("{PREFIX}_{name}{suffix}");
        self.described.push(Description { name, kind, help: help.to_owned(), labels });
    }
}
