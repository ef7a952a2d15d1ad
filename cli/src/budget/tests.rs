//! What people write as budgets, and what is said of what is none.

use std::time::Duration;

use millrace_protocol::plan::{Amounts, Budget, WhenSpent};

use super::{BudgetArguments, amount, dimension};

fn said(texts: &[&str]) -> BudgetArguments {
    BudgetArguments { said: texts.iter().flat_map(|text| text.split(',')).map(str::to_owned).collect() }
}

fn fault(text: &str) -> String {
    said(&[text]).over(Budget::default()).expect_err("it is no budget")
}

#[test]
fn a_budget_says_what_it_says() {
    let arguments = said(&[
        "tokens=200k,in=1.5M,out=5000,cached=1,calls=100,cost=2.00",
        "time=1h 30m,steps=20,tasks=50,depth=10,soft=70%,final=0,when_spent=cancel",
        "attempt.tokens=20k,research.tokens=50k,research.cost=$0.25",
    ]);
    let budget = arguments.over(Budget::default()).unwrap();
    let amounts = Amounts {
        tokens: Some(200_000),
        input_tokens: Some(1_500_000),
        output_tokens: Some(5_000),
        cached_tokens: Some(1),
        model_calls: Some(100),
        cost_micros: Some(2_000_000),
    };
    let research = Amounts { tokens: Some(50_000), cost_micros: Some(250_000), ..Amounts::default() };
    let expected = Budget {
        amounts,
        attempt: Amounts { tokens: Some(20_000), ..Amounts::default() },
        capabilities: [("research".parse().unwrap(), research)].into(),
        wall_time: Some(Duration::from_secs(5400)),
        steps: Some(20),
        tasks: Some(50),
        depth: Some(10),
        soft_percent: 70,
        final_percent: 0,
        when_spent: WhenSpent::Cancel,
    };
    assert_eq!(budget, expected);
}

#[test]
fn a_command_line_goes_before_a_file_and_leaves_the_rest_of_it() {
    let file = said(&["tokens=1000,steps=3,research.tokens=10"]).over(Budget::default()).unwrap();
    let budget = said(&["tokens=2000,research.calls=4"]).over(file).unwrap();
    assert_eq!((budget.amounts.tokens, budget.steps), (Some(2000), Some(3)));
    let research = budget.capabilities["research"];
    assert_eq!((research.tokens, research.model_calls), (Some(10), Some(4)));
}

#[test]
fn what_is_no_budget_is_told_with_what_it_must_be() {
    let known = "known are tokens, in, out, cached, calls, cost, time, steps, tasks, depth, soft, final, when_spent, and \
                 attempt.NAME or CAPABILITY.NAME for tokens, in, out, cached, calls, cost";
    assert_eq!(
        fault("tokns=5"),
        format!("--budget: there is no \"tokns\"; did you mean \"tokens\"?; {known}")
    );
    assert_eq!(fault("money=5"), format!("--budget: there is no \"money\"; {known}"));
    assert_eq!(
        fault("attempt.time=5m"),
        format!("--budget: there is no \"attempt.time\"; did you mean \"time\"?; {known}")
    );
    assert_eq!(fault("tokens"), "--budget \"tokens\": expected NAME=AMOUNT, such as tokens=200k");
    let number = "a whole number, 1 or more, such as 5000, 200k or 1.5M";
    for wrong in ["0", "", "-1", "1.5", "2e3", "k", "1.2345k", "99999999999999999999", "200 k", "0.0M"] {
        assert_eq!(
            fault(&format!("tokens={wrong}")),
            format!("--budget: tokens must be {number}, not {wrong:?}")
        );
    }
    assert_eq!(
        fault("research.cost=free"),
        "--budget: research.cost must be US dollars, more than 0, such as 2.50, not \"free\""
    );
    assert_eq!(fault("steps=0"), "--budget: steps must be a whole number, 1 or more, not \"0\"");
    assert_eq!(fault("soft=0"), "--budget: soft must be a percentage from 1 to 100, not \"0\"");
    assert_eq!(fault("final=91"), "--budget: final must be a percentage from 0 to 90, not \"91\"");
    assert_eq!(fault("when_spent=stop"), "--budget: when_spent must be finish or cancel, not \"stop\"");
    assert!(fault("time=10").contains("a duration is written as 10s or 1h 30m"), "{}", fault("time=10"));
    assert!(fault("a b.tokens=10").starts_with("--budget: a b.tokens: "), "{}", fault("a b.tokens=10"));
    assert_eq!(fault("tokens=1,tokens=2"), "--budget: tokens is there twice; leave one of them away");
}

#[test]
fn more_for_a_run_replaces_what_it_names_and_nothing_else() {
    let old = said(&["tokens=10,research.tokens=5,producer.calls=2"]).over(Budget::default()).unwrap();
    assert_eq!(said(&[]).more(&old), Ok(None));
    let more = said(&["tokens=20,research.calls=3"]).more(&old).unwrap().unwrap();
    let raised = old.raised(&more);
    assert_eq!(raised.amounts.tokens, Some(20));
    assert_eq!(
        (raised.capabilities["research"].tokens, raised.capabilities["research"].model_calls),
        (Some(5), Some(3))
    );
    assert_eq!(raised.capabilities["producer"].model_calls, Some(2));
    let refused = said(&["when_spent=cancel"]).more(&old).unwrap_err();
    assert_eq!(
        refused,
        "--budget when_spent=cancel: how a run ends is said when it is handed in, and stays so"
    );
}

#[test]
fn amounts_are_exact() {
    let cost = dimension("cost").unwrap();
    assert_eq!(amount(cost, "0.000001"), Some(1));
    assert_eq!(amount(cost, "0.0000001"), None);
    assert_eq!(amount(cost, "0.1"), Some(100_000));
    assert_eq!(amount(dimension("tokens").unwrap(), "18446744073709551615"), Some(u64::MAX));
    assert_eq!(amount(dimension("tokens").unwrap(), "18446744073709551615k"), None);
}
