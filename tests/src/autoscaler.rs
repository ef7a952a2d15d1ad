//! A model of how KEDA and Kubernetes scale a capability by its queue, sped up for tests. KEDA's scaler
//! `nats-jetstream` reads the consumer from the monitoring port of NATS and counts its pending and in-flight messages.
//! KEDA scales from 0 to 1 and back; the Kubernetes autoscaler does the rest. This module computes the number of
//! processes; it starts and stops none.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::web;

/// The sync interval of the Kubernetes autoscaler.
const SYNC: Duration = Duration::from_secs(15);
/// The relative deviation from the target that the autoscaler tolerates.
const TOLERANCE: f64 = 0.1;
/// The number of pods that the autoscaler may add within [`SYNC`], unless doubling the pods adds more.
const MAX_ADDED: u32 = 4;

/// The settings of a `ScaledObject`, with all durations sped up.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalingConfig {
    /// The target number of tasks for each pod.
    pub lag_threshold: u64,
    /// The number of tasks above which the first pod is started.
    pub activation_lag_threshold: u64,
    /// The smallest number of pods.
    pub min: u32,
    /// The largest number of pods.
    pub max: u32,
    /// KEDA's polling interval.
    pub polling: Duration,
    /// The idle time after which the last pod is removed.
    pub cooldown: Duration,
    /// The sync interval of the autoscaler.
    pub sync: Duration,
    /// The stabilization window before pods are removed.
    pub stabilization: Duration,
    /// The share of the pods that may be removed within [`Self::period`], from 0 to 1.
    pub share: f64,
    /// See [`Self::share`].
    pub period: Duration,
}

impl ScalingConfig {
    /// Reads a file with a `ScaledObject`, for pods with so many slots and at most `max` of them, sped up `faster`
    /// times.
    ///
    /// # Panics
    /// The file can't be read, or lacks a setting.
    #[must_use]
    pub fn from_file(file: &Path, slots: u32, max: u32, faster: u32) -> Self {
        let text = std::fs::read_to_string(file).expect("the ScaledObject can be read");
        let number = |name: &str| {
            let (_, rest) = text.split_once(&format!("{name}: ")).expect(name);
            let digits: String =
                rest.trim_start_matches('"').chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().expect(name)
        };
        let time = |name: &str| Duration::from_secs(number(name).into()) / faster;
        assert!(text.contains("type: nats-jetstream") && text.contains("type: Percent"), "{text}");
        Self {
            lag_threshold: slots.into(),
            activation_lag_threshold: number("activationLagThreshold").into(),
            min: number("minReplicaCount"),
            max,
            polling: time("pollingInterval"),
            cooldown: time("cooldownPeriod"),
            sync: SYNC / faster,
            stabilization: time("stabilizationWindowSeconds"),
            share: f64::from(number("value")) / 100.0,
            period: time("periodSeconds"),
        }
    }
}

/// The number of a capability's tasks, pending and in flight, as KEDA counts them: as reported by the server that leads
/// the consumer. For a missing consumer KEDA takes the last sequence number of the stream. `None` if no server on these
/// monitoring ports knows.
pub async fn fetch_queue_lag(
    ports: &[(Ipv4Addr, u16)],
    account: &str,
    stream: &str,
    consumer: &str,
) -> Option<u64> {
    for &(host, port) in ports {
        let path = format!("/jsz?acc={account}&consumers=true&config=true");
        let (_, text) = web::http_get(host, port, &path).await?;
        let response: Value = serde_json::from_str(&text).ok()?;
        let accounts = response["account_details"].as_array()?.iter();
        let mut streams = accounts.filter_map(|one| one["stream_detail"].as_array()).flatten();
        let Some(stream) = streams.find(|one| one["name"] == stream) else { continue };
        let mut consumers = stream["consumer_detail"].as_array().into_iter().flatten();
        let Some(consumer) = consumers.find(|one| one["name"] == consumer) else {
            return stream["state"]["last_seq"].as_u64();
        };
        if is_consumer_leader(consumer, host, port).await? {
            return Some(consumer["num_pending"].as_u64()? + consumer["num_ack_pending"].as_u64()?);
        }
    }
    None
}

async fn is_consumer_leader(consumer: &Value, host: Ipv4Addr, port: u16) -> Option<bool> {
    let Some(leader) = consumer["cluster"]["leader"].as_str() else { return Some(true) };
    let (_, text) = web::http_get(host, port, "/varz").await?;
    let server: Value = serde_json::from_str(&text).ok()?;
    Some(server["server_name"] == leader)
}

/// Computes the number of pods over time.
#[derive(Debug)]
pub struct Autoscaler {
    scaling: ScalingConfig,
    pods: u32,
    last_active: Option<Duration>,
    last_sync: Option<Duration>,
    /// The desired number of pods at each sync within the window.
    desired: VecDeque<(Duration, u32)>,
    /// The number of pods removed at each sync within the period.
    removed: VecDeque<(Duration, u32)>,
}

impl Autoscaler {
    /// An autoscaler that starts with no pods.
    #[must_use]
    pub fn new(scaling: ScalingConfig) -> Self {
        let (desired, removed) = (VecDeque::new(), VecDeque::new());
        Self { scaling, pods: 0, last_active: None, last_sync: None, desired, removed }
    }

    /// Returns the number of pods at this time, given the number of tasks that are pending or in flight.
    pub fn update_pod_count(&mut self, now: Duration, lag: u64) -> u32 {
        let ScalingConfig { min, cooldown, sync, activation_lag_threshold, .. } = self.scaling;
        if lag > activation_lag_threshold {
            self.last_active = Some(now);
            if self.pods == 0 {
                self.pods = min.max(1);
                (self.last_sync, self.desired, self.removed) = (Some(now), VecDeque::new(), VecDeque::new());
            }
        } else if min == 0 && self.last_active.is_none_or(|active| now >= active + cooldown) {
            self.pods = 0;
        }
        if self.pods > 0 && self.last_sync.is_none_or(|last| now >= last + sync) {
            self.last_sync = Some(now);
            self.pods = self.compute_pod_count(now, lag);
        }
        self.pods
    }

    fn compute_pod_count(&mut self, now: Duration, lag: u64) -> u32 {
        let ScalingConfig { lag_threshold, min, max, stabilization, share, period, .. } = self.scaling;
        let per_pod = lag as f64 / (lag_threshold * u64::from(self.pods)) as f64;
        let is_close = (per_pod - 1.0).abs() <= TOLERANCE;
        let desired = u32::try_from(lag.div_ceil(lag_threshold)).unwrap_or(u32::MAX);
        let desired = if is_close { self.pods } else { desired }.clamp(min.max(1), max);
        self.desired.push_back((now, desired));
        self.desired.retain(|(at, _)| *at + stabilization > now);
        self.removed.retain(|(at, _)| *at + period > now);
        if desired >= self.pods {
            return desired.min((self.pods * 2).max(self.pods + MAX_ADDED));
        }
        let stable = self.desired.iter().map(|(_, desired)| *desired).max().unwrap_or(desired);
        let removed: u32 = self.removed.iter().map(|(_, removed)| removed).sum();
        let minimum = (f64::from(self.pods + removed) * (1.0 - share)).floor() as u32;
        let pods = stable.max(minimum).min(self.pods);
        self.removed.push_back((now, self.pods - pods));
        pods
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn sample_scaling_config() -> ScalingConfig {
        ScalingConfig {
            lag_threshold: 4,
            activation_lag_threshold: 0,
            min: 0,
            max: 8,
            polling: SECOND,
            cooldown: 10 * SECOND,
            sync: SECOND,
            stabilization: 5 * SECOND,
            share: 0.5,
            period: 3 * SECOND,
        }
    }

    /// The number of pods at each second, given the number of tasks at each second.
    fn pod_counts(lags: &[u64]) -> Vec<u32> {
        let mut scaler = Autoscaler::new(sample_scaling_config());
        (0..).zip(lags).map(|(second, &lag)| scaler.update_pod_count(SECOND * second, lag)).collect()
    }

    #[test]
    fn first_task_starts_a_pod_and_pods_double_up_to_the_target() {
        assert_eq!(pod_counts(&[0, 1, 1, 100, 100, 100]), [0, 1, 1, 5, 8, 8]);
    }

    #[test]
    fn pods_halve_after_the_window_and_the_last_goes_when_idle() {
        let lags: Vec<u64> = [100; 4].into_iter().chain([1; 12]).chain([0; 12]).collect();
        let counts = pod_counts(&lags);
        assert_eq!(counts[..9], [1, 5, 8, 8, 8, 8, 8, 8, 4], "{counts:?}");
        assert_eq!(counts[9..16], [4, 4, 2, 2, 2, 1, 1], "{counts:?}");
        assert_eq!(counts[16..25], [1; 9], "{counts:?}");
        assert_eq!(counts[25..], [0; 3], "{counts:?}");
    }

    #[test]
    fn small_deviation_from_the_target_changes_nothing() {
        assert_eq!(pod_counts(&[16, 16, 17, 15, 16]), [1, 4, 4, 4, 4]);
    }
}
