//! Crashes at seeded random times: SIGKILL of supervisors, workers, critics and the server, one at a time or several at
//! once. Each process is restarted soon after, in random order.

use std::time::Duration;

use crate::cluster::TestCluster;
use crate::plans::SeededRandom;
use crate::processes::ProcessRole;

/// The processes that can be killed. Each seed starts with one of the first four, or with several at once.
const VICTIMS: [&str; 5] = ["supervisor-1", "worker-1", "critic-1", SERVER, "worker-2"];
const SERVER: &str = "nats-server";
/// The largest number of crashes in a run.
const CRASHES: u64 = 5;

/// Kills and restarts processes until the run is over or the last crash is done. Returns the number of crashes.
pub async fn crash_processes_at_random(
    cluster: &mut TestCluster,
    seed: u64,
    is_over: &impl AsyncFn() -> bool,
) -> usize {
    let mut random = SeededRandom::new(seed ^ 0x00c0_ffee);
    let mut crashes = 0;
    for number in 0..CRASHES {
        sleep_milliseconds(random.next_below(700)).await;
        if is_over().await {
            break;
        }
        let victims = choose_processes_to_crash(&mut random, seed, number);
        for victim in &victims {
            match *victim {
                SERVER => cluster.server.kill(),
                process => cluster.kill_process(process),
            }
        }
        sleep_milliseconds(random.next_below(500)).await;
        let turn = usize::try_from(random.next_below(victims.len() as u64)).unwrap_or(0);
        for victim in victims[turn..].iter().chain(&victims[..turn]) {
            match *victim {
                SERVER => cluster.server.restart(),
                process => cluster.restart_process(process),
            }
        }
        crashes += 1;
    }
    crashes
}

/// Kills one process of any role, or sometimes the server, and restarts it soon after.
pub async fn crash_one_at_random(cluster: &mut TestCluster, random: &mut SeededRandom) {
    let mut names: Vec<String> = [ProcessRole::Supervisor, ProcessRole::Worker, ProcessRole::Critic]
        .into_iter()
        .flat_map(|role| cluster.names_with_role(role))
        .collect();
    names.push(SERVER.into());
    let victim = &names[usize::try_from(random.next_below(names.len() as u64)).unwrap_or(0)];
    let is_server = victim == SERVER;
    if is_server {
        cluster.server.kill();
    } else {
        cluster.kill_process(victim);
    }
    sleep_milliseconds(random.next_below(400)).await;
    if is_server {
        cluster.server.restart();
    } else {
        cluster.restart_process(victim);
    }
}

fn choose_processes_to_crash(random: &mut SeededRandom, seed: u64, number: u64) -> Vec<&'static str> {
    let first = usize::try_from(seed % 5).unwrap_or(0);
    if number == 0 && first < 4 {
        return vec![VICTIMS[first]];
    }
    let least = if number == 0 { 3 } else { 1 };
    loop {
        let chosen: Vec<_> = VICTIMS.into_iter().filter(|_| random.next_bool_with_percent(40)).collect();
        if chosen.len() >= least {
            return chosen;
        }
    }
}

async fn sleep_milliseconds(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}
