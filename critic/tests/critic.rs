//! Critics against a real NATS server, and a whole run by hand: plan, research, report, each with its review.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::{Review, Work};
use millrace_protocol::result::ErrorKind;
use millrace_protocol::work::{Input, Order, Outcome};
use serde_json::json;
use support::{Cluster, PATIENCE, counts, critic, order, order_for, review, verdict, worker};

#[tokio::test(flavor = "multi_thread")]
async fn what_echo_made_passes_unless_it_was_marked_to_be_rejected() {
    let cluster = Cluster::start().await;
    let (worker, critic) = (worker(&cluster), critic(&cluster, "judge"));
    for (task, rate, passes) in [("good", 0, true), ("bad", 1, false)] {
        let order = Order {
            criteria: vec!["it is short".into()],
            ..order("echo", task, json!({"reject_rate": rate}))
        };
        cluster.offer(&order).await;
        let (sequence, result) = cluster.result(&order).await;
        let review = review(&order, Cluster::input(&order, "author", sequence, &result));
        cluster.offer(&review).await;
        let verdict = verdict(&cluster, &review).await;
        assert_eq!((verdict.passed, verdict.feedback.is_none()), (passes, passes), "{verdict:?}");
        assert_eq!(counts(&cluster.journal(&review).await), (1, 0, 1));
    }
    cluster.waiting("critic", 0).await;
    worker.stop().await;
    critic.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_author_leaves_its_result_to_another_critic() {
    let cluster = Cluster::start().await;
    let worker = worker(&cluster);
    let order = order("echo", "t", json!({}));
    cluster.offer(&order).await;
    let (sequence, result) = cluster.result(&order).await;
    let review = review(&order, Cluster::input(&order, "author", sequence, &result));
    cluster.offer(&review).await;
    let own = critic(&cluster, "author");
    // It was delivered, and nobody claimed it.
    millrace_tests::eventually(PATIENCE, "a delivery that was given back", async || {
        let context = async_nats::jetstream::new(cluster.bus.client().clone());
        let name = Capability::new("critic").unwrap();
        let queue = millrace_runtime::topology::ensure_queue(&context, cluster.bus.settings(), &name).await;
        (queue.unwrap().info().await.unwrap().num_redelivered > 0).then_some(())
    })
    .await;
    assert_eq!(counts(&cluster.journal(&review).await), (0, 0, 0));
    let other = critic(&cluster, "other");
    assert!(verdict(&cluster, &review).await.passed);
    own.stop().await;
    other.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_review_of_a_result_that_is_not_there_ends_in_an_error() {
    let cluster = Cluster::start().await;
    let critic = critic(&cluster, "judge");
    let order = order("echo", "t", json!({}));
    let gone = Cluster::input(&order, "author", 4711, &Default::default());
    for review in [
        review(&order, gone),
        order_for("critic", Work::Task { task: TaskId::new("x").unwrap(), attempt: 1 }),
    ] {
        cluster.offer(&review).await;
        let (_, outcome) = cluster.outcome(&review).await;
        let Outcome::Errored(error) = outcome else { panic!("{outcome:?}") };
        let kinds = [ErrorKind::Other, ErrorKind::InvalidTask];
        assert!(kinds.contains(&error.kind), "{error:?}");
    }
    critic.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_run_by_hand_is_planned_researched_reported_and_passes_its_reviews() {
    let cluster = Cluster::start().await;
    let (worker, critic) = (worker(&cluster), critic(&cluster, "judge"));
    let documents = cluster
        .documents(&[
            ("mills.md", MILLS),
            ("rivers.txt", "The river Eem rises in the hills. It feeds no mill. Its water is clear."),
        ])
        .await;
    let mission = "How does a mill race drive the wheel, and when is the sluice closed?";
    let told = |order: Order| Order { mission: mission.into(), documents: Some(documents.clone()), ..order };
    let planning = told(Order {
        objective: mission.into(),
        ..order_for("planner", Work::Planning { turn: 1, attempt: 1 })
    });
    cluster.offer(&planning).await;
    let (_, outcome) = cluster.outcome(&planning).await;
    let Outcome::Proposed { proposal, usage, models: _ } = outcome else { panic!("{outcome:?}") };
    assert!(usage.model_calls > 0 && proposal.tasks.len() >= 2, "{proposal:?}");

    let mut inputs: Vec<Input> = Vec::new();
    let mut finals = 0;
    for spec in &proposal.tasks {
        let work = Work::Task { task: spec.id.clone(), attempt: 1 };
        let order = told(Order {
            objective: spec.objective.clone(),
            parameters: spec.parameters.clone(),
            inputs: inputs.iter().filter(|input| spec.depends_on.contains(&input.task)).cloned().collect(),
            is_final: spec.is_final,
            criteria: match &spec.review {
                Review::Critic { criteria, .. } => criteria.clone(),
                Review::None | Review::Checks { .. } => Vec::new(),
            },
            ..order_for(spec.capability.as_str(), work)
        });
        assert_eq!(order.inputs.len(), spec.depends_on.len(), "a plan names what comes first, first");
        cluster.offer(&order).await;
        let (sequence, result) = cluster.result(&order).await;
        assert!(!result.is_empty() && result.usage.model_calls > 0, "{result:?}");
        let input = Cluster::input(&order, "author", sequence, &result);
        let review = review(&order, input.clone());
        cluster.offer(&review).await;
        let verdict = verdict(&cluster, &review).await;
        assert!(verdict.passed, "{}: {verdict:#?}\n{result:#?}", spec.id);
        assert!(counts(&cluster.journal(&order).await).1 > 0, "its replies are in the journal");
        if spec.is_final {
            finals += 1;
            assert!(result.output.contains("sluice") && result.output.contains("[1]"), "{}", result.output);
            assert!(
                result.sources.iter().any(|source| source.location == "mills.md"),
                "{:?}",
                result.sources
            );
        }
        inputs.push(input);
    }
    assert_eq!(finals, 1);
    for capability in ["planner", "research", "producer", "critic"] {
        cluster.waiting(capability, 0).await;
    }
    worker.stop().await;
    critic.stop().await;
}

const MILLS: &str = "\
# Mills

A mill race is a channel that leads water from the river to the wheel.
The mill race drives the wheel: the water falls on the blades and its weight turns the wheel.

## The sluice

The sluice is closed when the river is in flood, so that the wheel takes no harm.
The sluice is closed at night too.
";
