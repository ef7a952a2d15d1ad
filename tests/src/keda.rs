//! What KEDA and Kubernetes do with the queue of a capability, at a pace for tests: KEDA's scaler `nats-jetstream` asks
//! the monitoring port of NATS for the consumer and counts what waits and what is in hand; KEDA goes from none to one
//! and back, and the autoscaler of Kubernetes does the rest. It decides how many processes there are to be, and starts
//! and stops none.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::web;

/// How often the autoscaler of Kubernetes looks.
const SYNC: Duration = Duration::from_secs(15);
/// How far the autoscaler lets what is there differ from what is wanted before it does anything.
const TOLERANCE: f64 = 0.1;
/// How many more pods the autoscaler starts within [`SYNC`], unless twice as many as there are is more.
const MOST_AT_ONCE: u32 = 4;

/// How a capability scales: what a `ScaledObject` says, all times at the pace of the test.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaling {
    /// How many tasks there are to be for each pod.
    pub lag_threshold: u64,
    /// How many tasks there may be while there is no pod.
    pub activation_lag_threshold: u64,
    /// The fewest pods.
    pub min: u32,
    /// The most pods.
    pub max: u32,
    /// How often KEDA asks.
    pub polling: Duration,
    /// How long there must have been nothing to do before the last pod goes.
    pub cooldown: Duration,
    /// How often the autoscaler looks.
    pub sync: Duration,
    /// How long less must have been wanted before there is less.
    pub stabilization: Duration,
    /// The share of the pods that may go within [`Self::period`], from 0 to 1.
    pub share: f64,
    /// See [`Self::share`].
    pub period: Duration,
}

impl Scaling {
    /// What a file with a `ScaledObject` says, for pods of so many slots, of which there are `max` at the most, `faster`
    /// times as fast.
    ///
    /// # Panics
    /// The file can't be read, or does not say what is needed.
    #[must_use]
    pub fn of(file: &Path, slots: u32, max: u32, faster: u32) -> Self {
        let text = std::fs::read_to_string(file).expect("the ScaledObject is there");
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

/// How many tasks of a capability there are, waiting and in hand, as KEDA counts them: by the word of the server that
/// leads the consumer. Of a consumer that is not there it takes the number of all messages ever. Nothing where no server
/// of these monitoring ports knows.
pub async fn lag(ports: &[(Ipv4Addr, u16)], account: &str, stream: &str, consumer: &str) -> Option<u64> {
    for &(host, port) in ports {
        let path = format!("/jsz?acc={account}&consumers=true&config=true");
        let (_, text) = web::get(host, port, &path).await?;
        let found: Value = serde_json::from_str(&text).ok()?;
        let accounts = found["account_details"].as_array()?.iter();
        let mut streams = accounts.filter_map(|one| one["stream_detail"].as_array()).flatten();
        let Some(stream) = streams.find(|one| one["name"] == stream) else { continue };
        let mut consumers = stream["consumer_detail"].as_array().into_iter().flatten();
        let Some(consumer) = consumers.find(|one| one["name"] == consumer) else {
            return stream["state"]["last_seq"].as_u64();
        };
        if is_leader(consumer, host, port).await? {
            return Some(consumer["num_pending"].as_u64()? + consumer["num_ack_pending"].as_u64()?);
        }
    }
    None
}

async fn is_leader(consumer: &Value, host: Ipv4Addr, port: u16) -> Option<bool> {
    let Some(leader) = consumer["cluster"]["leader"].as_str() else { return Some(true) };
    let (_, text) = web::get(host, port, "/varz").await?;
    let server: Value = serde_json::from_str(&text).ok()?;
    Some(server["server_name"] == leader)
}

/// How many pods there are to be, as time goes on.
#[derive(Debug)]
pub struct Autoscaler {
    scaling: Scaling,
    pods: u32,
    last_active: Option<Duration>,
    last_sync: Option<Duration>,
    /// What was wanted at each look within the window.
    wanted: VecDeque<(Duration, u32)>,
    /// How many went at each look within the period.
    gone: VecDeque<(Duration, u32)>,
}

impl Autoscaler {
    /// Of none.
    #[must_use]
    pub fn new(scaling: Scaling) -> Self {
        let (wanted, gone) = (VecDeque::new(), VecDeque::new());
        Self { scaling, pods: 0, last_active: None, last_sync: None, wanted, gone }
    }

    /// How many pods there are to be at this time, where so many tasks wait or are in hand.
    pub fn look(&mut self, now: Duration, lag: u64) -> u32 {
        let Scaling { min, cooldown, sync, activation_lag_threshold, .. } = self.scaling;
        if lag > activation_lag_threshold {
            self.last_active = Some(now);
            if self.pods == 0 {
                self.pods = min.max(1);
                (self.last_sync, self.wanted, self.gone) = (Some(now), VecDeque::new(), VecDeque::new());
            }
        } else if min == 0 && self.last_active.is_none_or(|active| now >= active + cooldown) {
            self.pods = 0;
        }
        if self.pods > 0 && self.last_sync.is_none_or(|last| now >= last + sync) {
            self.last_sync = Some(now);
            self.pods = self.autoscale(now, lag);
        }
        self.pods
    }

    fn autoscale(&mut self, now: Duration, lag: u64) -> u32 {
        let Scaling { lag_threshold, min, max, stabilization, share, period, .. } = self.scaling;
        let per_pod = lag as f64 / (lag_threshold * u64::from(self.pods)) as f64;
        let is_close = (per_pod - 1.0).abs() <= TOLERANCE;
        let wanted = u32::try_from(lag.div_ceil(lag_threshold)).unwrap_or(u32::MAX);
        let wanted = if is_close { self.pods } else { wanted }.clamp(min.max(1), max);
        self.wanted.push_back((now, wanted));
        self.wanted.retain(|(at, _)| *at + stabilization > now);
        self.gone.retain(|(at, _)| *at + period > now);
        if wanted >= self.pods {
            return wanted.min((self.pods * 2).max(self.pods + MOST_AT_ONCE));
        }
        let stable = self.wanted.iter().map(|(_, wanted)| *wanted).max().unwrap_or(wanted);
        let gone: u32 = self.gone.iter().map(|(_, gone)| gone).sum();
        let least = (f64::from(self.pods + gone) * (1.0 - share)).floor() as u32;
        let pods = stable.max(least).min(self.pods);
        self.gone.push_back((now, self.pods - pods));
        pods
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn scaling() -> Scaling {
        Scaling {
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

    /// How many pods there are at each second, where so many tasks are there.
    fn pods(lags: &[u64]) -> Vec<u32> {
        let mut scaler = Autoscaler::new(scaling());
        (0..).zip(lags).map(|(second, &lag)| scaler.look(SECOND * second, lag)).collect()
    }

    #[test]
    fn pods_come_with_the_first_task_and_double_as_far_as_is_wanted() {
        assert_eq!(pods(&[0, 1, 1, 100, 100, 100]), [0, 1, 1, 5, 8, 8]);
    }

    #[test]
    fn pods_go_by_halves_when_less_was_wanted_for_a_while_and_the_last_when_nothing_was_there() {
        let lags: Vec<u64> = [100; 4].into_iter().chain([1; 12]).chain([0; 12]).collect();
        let found = pods(&lags);
        assert_eq!(found[..9], [1, 5, 8, 8, 8, 8, 8, 8, 4], "{found:?}");
        assert_eq!(found[9..16], [4, 4, 2, 2, 2, 1, 1], "{found:?}");
        assert_eq!(found[16..25], [1; 9], "{found:?}");
        assert_eq!(found[25..], [0; 3], "{found:?}");
    }

    #[test]
    fn a_little_more_or_less_than_is_wanted_changes_nothing() {
        assert_eq!(pods(&[16, 16, 17, 15, 16]), [1, 4, 4, 4, 4]);
    }
}
