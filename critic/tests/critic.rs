//! Critics against a real NATS server, and a complete run driven by the test: plan, research, report, each with its review.
use crate::support::{
    Cluster, PATIENCE, await_verdict, build_order, build_order_for_work, build_review_order, count_entries,
    start_critic, start_worker, with_review_brief,
};
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::{ReviewPolicy, Work};
use millrace_protocol::result::ErrorKind;
use millrace_protocol::work::{InputResult, Order, ReviewBrief, WorkOutcome};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_result_of_echo_passes_unless_marked_for_rejection() {
    let cluster = Cluster::start().await;
    let (worker, critic) = (start_worker(&cluster), start_critic(&cluster, "judge"));
    for (task, rate, passes) in [("good", 0, true), ("bad", 1, false)] {
        let order = build_order("echo", task, json!({"reject_rate": rate}));
        cluster.publish_order(&order).await;
        let (sequence, result) = cluster.await_result(&order).await;
        let review = build_review_order(&order, Cluster::build_input(&order, "author", sequence, &result));
        let brief = ReviewBrief { criteria: vec!["it is short".into()], ..ReviewBrief::default() };
        let review = with_review_brief(review, brief);
        cluster.publish_order(&review).await;
        let verdict = await_verdict(&cluster, &review).await;
        assert_eq!((verdict.passed, verdict.feedback.is_none()), (passes, passes), "{verdict:?}");
        assert_eq!(count_entries(&cluster.read_journal(&review).await), (1, 0, 1));
    }
    cluster.await_waiting_orders("critic", 0).await;
    worker.stop().await;
    critic.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_critic_does_not_review_its_own_result() {
    let cluster = Cluster::start().await;
    let worker = start_worker(&cluster);
    let order = build_order("echo", "t", json!({}));
    cluster.publish_order(&order).await;
    let (sequence, result) = cluster.await_result(&order).await;
    let review = build_review_order(&order, Cluster::build_input(&order, "author", sequence, &result));
    cluster.publish_order(&review).await;
    let own = start_critic(&cluster, "author");
    // It was delivered, but not claimed.
    millrace_tests::wait_for_value(PATIENCE, "a delivery that was returned", async || {
        let context = async_nats::jetstream::new(cluster.bus.client().clone());
        let name = Capability::new("critic").unwrap();
        let queue =
            millrace_runtime::nats::topology::ensure_queue(&context, cluster.bus.settings(), &name).await;
        (queue.unwrap().info().await.unwrap().num_redelivered > 0).then_some(())
    })
    .await;
    assert_eq!(count_entries(&cluster.read_journal(&review).await), (0, 0, 0));
    let other = start_critic(&cluster, "other");
    assert!(await_verdict(&cluster, &review).await.passed);
    own.stop().await;
    other.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_review_of_a_missing_result_ends_in_an_error() {
    let cluster = Cluster::start().await;
    let critic = start_critic(&cluster, "judge");
    let order = build_order("echo", "t", json!({}));
    let missing = Cluster::build_input(&order, "author", 4711, &Default::default());
    for review in [
        build_review_order(&order, missing),
        build_order_for_work("critic", Work::Task { task: TaskId::new("x").unwrap(), attempt: 1 }),
    ] {
        cluster.publish_order(&review).await;
        let (_, outcome) = cluster.await_outcome(&review).await;
        let WorkOutcome::Errored(error) = outcome else { panic!("{outcome:?}") };
        let kinds = [ErrorKind::Other, ErrorKind::InvalidTask];
        assert!(kinds.contains(&error.kind), "{error:?}");
    }
    critic.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complete_run_passes_its_reviews() {
    let cluster = Cluster::start().await;
    let (worker, critic) = (start_worker(&cluster), start_critic(&cluster, "judge"));
    let documents = cluster
        .store_documents(&[
            ("mills.md", MILLS),
            ("rivers.txt", "The river Eem rises in the hills. It feeds no mill. Its water is clear."),
        ])
        .await;
    let mission = "How does a mill race drive the wheel, and when is the sluice closed?";
    let of_run =
        |order: Order| Order { mission: mission.into(), documents: Some(documents.clone()), ..order };
    let planning = of_run(Order {
        objective: mission.into(),
        ..build_order_for_work("planner", Work::Planning { turn: 1, attempt: 1 })
    });
    cluster.publish_order(&planning).await;
    let (_, outcome) = cluster.await_outcome(&planning).await;
    let WorkOutcome::Proposed { proposal, usage, models: _ } = outcome else { panic!("{outcome:?}") };
    assert!(proposal.tasks.len() >= 2, "{proposal:?}");
    assert_eq!(usage.model_calls, 0, "the built-in one is no model");

    let mut inputs: Vec<InputResult> = Vec::new();
    let mut finals = 0;
    for spec in &proposal.tasks {
        let work = Work::Task { task: spec.id.clone(), attempt: 1 };
        let order = of_run(Order {
            objective: spec.objective.clone(),
            parameters: spec.parameters.clone(),
            inputs: inputs.iter().filter(|input| spec.depends_on.contains(&input.task)).cloned().collect(),
            is_final: spec.is_final,
            ..build_order_for_work(spec.capability.as_str(), work)
        });
        assert_eq!(
            order.inputs.len(),
            spec.depends_on.len(),
            "a plan lists dependencies before their dependents"
        );
        cluster.publish_order(&order).await;
        let (sequence, result) = cluster.await_result(&order).await;
        assert!(!result.is_empty() && result.usage.model_calls == 0, "{result:?}");
        let input = Cluster::build_input(&order, "author", sequence, &result);
        let criteria = match spec.review.by_critic() {
            ReviewPolicy::Critic { criteria, .. } => criteria.clone(),
            ReviewPolicy::None | ReviewPolicy::Checks { .. } | ReviewPolicy::Persons(_) => Vec::new(),
        };
        let brief = ReviewBrief { criteria, ..ReviewBrief::default() };
        let review = with_review_brief(build_review_order(&order, input.clone()), brief);
        cluster.publish_order(&review).await;
        let verdict = await_verdict(&cluster, &review).await;
        assert!(verdict.passed, "{}: {verdict:#?}\n{result:#?}", spec.id);
        assert!(count_entries(&cluster.read_journal(&order).await).1 > 0, "its replies are in the journal");
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
        cluster.await_waiting_orders(capability, 0).await;
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
