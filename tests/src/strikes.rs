//! Deaths at seeded random moments: of supervisors, workers, critics and the server, one by one and several at once.
//! Whoever dies is started again soon, not always in the order in which one would start them.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::plans::Random;

/// Who can be killed. Each seed strikes one of the first four first, or several of them at once.
const VICTIMS: [&str; 5] = ["supervisor-1", "worker-1", "critic-1", SERVER, "worker-2"];
const SERVER: &str = "nats-server";
/// How often at the most.
const STRIKES: u64 = 5;

/// Kills and starts again, until the run is over or all strikes are done; says how many were done in time.
pub async fn strike(cluster: &mut Cluster, seed: u64, is_over: &impl AsyncFn() -> bool) -> usize {
    let mut random = Random::new(seed ^ 0x00c0_ffee);
    let mut strikes = 0;
    for number in 0..STRIKES {
        pass(random.below(700)).await;
        if is_over().await {
            break;
        }
        let victims = victims(&mut random, seed, number);
        for victim in &victims {
            match *victim {
                SERVER => cluster.server.kill(),
                process => cluster.kill(process),
            }
        }
        pass(random.below(500)).await;
        let turn = usize::try_from(random.below(victims.len() as u64)).unwrap_or(0);
        for victim in victims[turn..].iter().chain(&victims[..turn]) {
            match *victim {
                SERVER => cluster.server.restart(),
                process => cluster.restart(process),
            }
        }
        strikes += 1;
    }
    strikes
}

fn victims(random: &mut Random, seed: u64, number: u64) -> Vec<&'static str> {
    let first = usize::try_from(seed % 5).unwrap_or(0);
    if number == 0 && first < 4 {
        return vec![VICTIMS[first]];
    }
    let least = if number == 0 { 3 } else { 1 };
    loop {
        let chosen: Vec<_> = VICTIMS.into_iter().filter(|_| random.happens(40)).collect();
        if chosen.len() >= least {
            return chosen;
        }
    }
}

async fn pass(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}
