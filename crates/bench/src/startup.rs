//! The time from the start of a local cluster to the end of its first task, compared with that from the start of its NATS server to
//! the first stored message.

use std::collections::BTreeMap;
use std::time::Instant;

use async_nats::jetstream;

use crate::cluster::{BareServer, BenchCluster, BenchOptions};
use crate::plans;
use crate::process::CpuSeconds;
use crate::report::{BaselineComparison, median};
use crate::run::run_to_end;

/// Measures the start of both, in seconds.
pub async fn compare_startup_with_server(
    options: &BenchOptions,
    rounds: u32,
) -> anyhow::Result<BaselineComparison> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        times.push((measure_cluster(options).await?, measure_server(options).await?));
    }
    let figure = median(times.iter().map(|(cluster, _)| *cluster));
    let bare = median(times.iter().map(|(_, server)| *server));
    Ok(BaselineComparison {
        what: "start of a cluster to the end of its first task; baseline: of its server to the first message"
            .into(),
        unit: "s",
        figure,
        bare,
        ratio: bare / figure.max(1e-9),
        rounds: times,
        details: BTreeMap::new(),
        processor_seconds: CpuSeconds::new(),
        bare_processor_seconds: CpuSeconds::new(),
    })
}

async fn measure_cluster(options: &BenchOptions) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut cluster = BenchCluster::start(options).await?;
    run_to_end(&mut cluster, &plans::fan_out_submission(1, false)).await?;
    let took = began.elapsed().as_secs_f64();
    cluster.stop_cluster().await;
    Ok(took)
}

async fn measure_server(options: &BenchOptions) -> anyhow::Result<f64> {
    let began = Instant::now();
    let server = BareServer::start(options).await?;
    let context = jetstream::new(server.connect_client().await?);
    let config = jetstream::stream::Config {
        name: "startup".into(),
        subjects: vec!["startup".into()],
        ..jetstream::stream::Config::default()
    };
    context.create_stream(config).await?;
    context.publish("startup", "first".into()).await?.await?;
    let took = began.elapsed().as_secs_f64();
    server.stop().await;
    Ok(took)
}
