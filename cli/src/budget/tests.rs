//! Parsing of budgets and messages about invalid ones.

use std::time::Duration;

use millrace_protocol::plan::{Budget, BudgetExhaustionPolicy, ResourceAmounts};

use millrace_plan_file::limits::{parse_amount, parse_dimension};

use super::BudgetArguments;

fn parse_budget_arguments(texts: &[&str]) -> BudgetArguments {
    let entries = texts.iter().flat_map(|text| text.split(',')).map(str::to_owned).collect();
    BudgetArguments { entries, provider_timeout: None }
}

fn override_error(text: &str) -> String {
    parse_budget_arguments(&[text]).override_budget(Budget::default()).expect_err("the budget is invalid")
}

#[test]
fn all_budget_entries_are_parsed() {
    let parsed = parse_budget_arguments(&[
        "tokens=200k,in=1.5M,out=5000,cached=1,calls=100,cost=2.00",
        "time=1h 30m,steps=20,tasks=50,depth=10,soft=70%,final=0,when_spent=cancel",
        "attempt.tokens=20k,research.tokens=50k,research.cost=$0.25",
    ]);
    let budget = parsed.override_budget(Budget::default()).unwrap();
    let amounts = ResourceAmounts {
        tokens: Some(200_000),
        input_tokens: Some(1_500_000),
        output_tokens: Some(5_000),
        cached_tokens: Some(1),
        model_calls: Some(100),
        cost_micros: Some(2_000_000),
    };
    let research =
        ResourceAmounts { tokens: Some(50_000), cost_micros: Some(250_000), ..ResourceAmounts::default() };
    let expected = Budget {
        amounts,
        attempt: ResourceAmounts { tokens: Some(20_000), ..ResourceAmounts::default() },
        capabilities: [("research".parse().unwrap(), research)].into(),
        wall_time: Some(Duration::from_secs(5400)),
        provider_timeout: None,
        steps: Some(20),
        tasks: Some(50),
        depth: Some(10),
        soft_percent: 70,
        final_percent: 0,
        when_spent: BudgetExhaustionPolicy::Cancel,
    };
    assert_eq!(budget, expected);
}

#[test]
fn the_command_line_overrides_single_entries_of_the_file() {
    let file = parse_budget_arguments(&["tokens=1000,steps=3,research.tokens=10"])
        .override_budget(Budget::default())
        .unwrap();
    let budget = parse_budget_arguments(&["tokens=2000,research.calls=4"]).override_budget(file).unwrap();
    assert_eq!((budget.amounts.tokens, budget.steps), (Some(2000), Some(3)));
    let research = budget.capabilities["research"];
    assert_eq!((research.tokens, research.model_calls), (Some(10), Some(4)));
}

#[test]
fn invalid_budgets_are_explained() {
    let valid = "valid: tokens, in, out, cached, calls, cost, time, steps, tasks, depth, soft, final, when_spent, and \
                 attempt.NAME or CAPABILITY.NAME for tokens, in, out, cached, calls, cost";
    assert_eq!(
        override_error("tokns=5"),
        format!("--budget: unknown budget \"tokns\"; did you mean \"tokens\"?; {valid}")
    );
    assert_eq!(override_error("money=5"), format!("--budget: unknown budget \"money\"; {valid}"));
    assert_eq!(
        override_error("attempt.time=5m"),
        format!("--budget: unknown budget \"attempt.time\"; did you mean \"time\"?; {valid}")
    );
    assert_eq!(override_error("tokens"), "--budget \"tokens\": expected NAME=AMOUNT, such as tokens=200k");
    let number = "a whole number, 1 or more, such as 5000, 200k or 1.5M, and at most 1000000000M";
    for wrong in ["0", "", "-1", "1.5", "2e3", "k", "1.2345k", "99999999999999999999", "200 k", "0.0M"] {
        assert_eq!(
            override_error(&format!("tokens={wrong}")),
            format!("--budget: tokens must be {number}, not {wrong:?}")
        );
    }
    assert_eq!(
        override_error("research.cost=free"),
        "--budget: research.cost must be US dollars, from 0.000001 to 1000000000, such as 2.50, not \"free\""
    );
    assert_eq!(override_error("steps=0"), "--budget: steps must be a whole number, 1 or more, not \"0\"");
    assert_eq!(override_error("soft=0"), "--budget: soft must be a percentage from 1 to 100, not \"0\"");
    assert_eq!(override_error("final=91"), "--budget: final must be a percentage from 0 to 90, not \"91\"");
    assert_eq!(
        override_error("when_spent=stop"),
        "--budget: when_spent must be finish or cancel, not \"stop\""
    );
    assert!(
        override_error("time=10").contains("write a number with a unit, such as 500ms, 10s, 1h 30m or 30d"),
        "{}",
        override_error("time=10")
    );
    assert!(
        override_error("a b.tokens=10").starts_with("--budget: a b.tokens: "),
        "{}",
        override_error("a b.tokens=10")
    );
    assert_eq!(override_error("tokens=1,tokens=2"), "--budget: tokens is given twice; remove one of them");
}

#[test]
fn a_new_budget_replaces_only_its_own_entries() {
    let old = parse_budget_arguments(&["tokens=10,research.tokens=5,producer.calls=2"])
        .override_budget(Budget::default())
        .unwrap();
    assert_eq!(parse_budget_arguments(&[]).compute_new_limits(&old), Ok(None));
    let more =
        parse_budget_arguments(&["tokens=20,research.calls=3"]).compute_new_limits(&old).unwrap().unwrap();
    let raised = old.with_overrides(&more);
    assert_eq!(raised.amounts.tokens, Some(20));
    assert_eq!(
        (raised.capabilities["research"].tokens, raised.capabilities["research"].model_calls),
        (Some(5), Some(3))
    );
    assert_eq!(raised.capabilities["producer"].model_calls, Some(2));
    let refused = parse_budget_arguments(&["when_spent=cancel"]).compute_new_limits(&old).unwrap_err();
    assert_eq!(refused, "--budget when_spent=cancel: when_spent can only be set at submission");
}

#[test]
fn amounts_are_exact() {
    let cost = parse_dimension("cost").unwrap();
    assert_eq!(parse_amount(cost, "0.000001"), Some(1));
    assert_eq!(parse_amount(cost, "0.0000001"), None);
    assert_eq!(parse_amount(cost, "0.1"), Some(100_000));
    let tokens = parse_dimension("tokens").unwrap();
    for largest in ["1000000000000000", "1000000000000k", "1000000000M"] {
        assert_eq!(parse_amount(tokens, largest), Some(1_000_000_000_000_000), "{largest}");
    }
    assert_eq!(parse_amount(cost, "1000000000"), Some(1_000_000_000_000_000));
    for wrong in ["1000000000000001", "1000000001M", "18446744073709551615k", "0", "0k", "1.5", "200K tokens"]
    {
        assert_eq!(parse_amount(tokens, wrong), None, "{wrong}");
    }
    assert_eq!(parse_amount(cost, "1000000000.000001"), None);
}
