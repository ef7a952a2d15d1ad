//! The mapping of provider errors.

use super::*;
use serde_json::json;

fn model_error_for_response(status: u16, headers: &[(&'static str, &str)], body: &str) -> ModelError {
    let headers =
        headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    model_error_from_response(
        StatusCode::from_u16(status).unwrap(),
        &headers,
        body,
        &SecretRedactor::default(),
    )
}

#[test]
fn every_provider_s_errors_are_mapped() {
    let cases = [
        // OpenAI
        (
            401,
            r#"{"error":{"message":"Incorrect API key provided: sk-abc.","type":"invalid_request_error","code":"invalid_api_key"}}"#,
            "authentication",
        ),
        (
            403,
            r#"{"error":{"message":"Country not supported","code":"unsupported_country_region_territory"}}"#,
            "authentication",
        ),
        (
            404,
            r#"{"error":{"message":"The model `gpt-9` does not exist","type":"invalid_request_error","code":"model_not_found"}}"#,
            "bad_request",
        ),
        (
            400,
            r#"{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
            "context_overflow",
        ),
        (
            400,
            r#"{"error":{"message":"Your input exceeds the context window of this model.","type":"invalid_request_error","code":null}}"#,
            "context_overflow",
        ),
        (
            400,
            r#"{"error":{"message":"Invalid schema for response_format","type":"invalid_request_error","param":"response_format"}}"#,
            "bad_request",
        ),
        (
            400,
            r#"{"error":{"message":"Invalid prompt: your prompt was flagged as potentially violating our usage policy.","code":"invalid_prompt"}}"#,
            "content_filter",
        ),
        (
            400,
            r#"{"error":{"message":"The response was filtered due to the prompt triggering Azure OpenAI's content management policy.","code":"content_filter","innererror":{"code":"ResponsibleAIPolicyViolation"}}}"#,
            "content_filter",
        ),
        (
            429,
            r#"{"error":{"message":"Rate limit reached for gpt-5 on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s.","type":"tokens","code":"rate_limit_exceeded"}}"#,
            "rate_limited",
        ),
        (
            429,
            r#"{"error":{"message":"Request too large for gpt-5 on tokens per min (TPM): Limit 30000, Requested 40000.","type":"tokens","code":"rate_limit_exceeded"}}"#,
            "context_overflow",
        ),
        (
            429,
            r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","code":"insufficient_quota"}}"#,
            "no_quota",
        ),
        (500, r#"{"error":{"message":"The server had an error","type":"server_error"}}"#, "overloaded"),
        (
            503,
            r#"{"error":{"message":"The engine is currently overloaded","type":"engine_overloaded"}}"#,
            "overloaded",
        ),
        // Anthropic
        (
            401,
            r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#,
            "authentication",
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
            "context_overflow",
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"}}"#,
            "context_overflow",
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}"#,
            "no_quota",
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"Output blocked by content filtering policy: content filter"}}"#,
            "content_filter",
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"tools.0.custom.input_schema: unsupported"}}"#,
            "bad_request",
        ),
        (
            403,
            r#"{"type":"error","error":{"type":"permission_error","message":"Your API key does not have permission"}}"#,
            "authentication",
        ),
        (
            404,
            r#"{"type":"error","error":{"type":"not_found_error","message":"model: claude-9"}}"#,
            "bad_request",
        ),
        (
            413,
            r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum allowed number of bytes."}}"#,
            "context_overflow",
        ),
        (
            429,
            r#"{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed the rate limit of 40,000 input tokens per minute"}}"#,
            "rate_limited",
        ),
        (
            500,
            r#"{"type":"error","error":{"type":"api_error","message":"Internal server error"}}"#,
            "overloaded",
        ),
        (529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, "overloaded"),
        // Ollama
        (404, r#"{"error":"model 'qwen9' not found"}"#, "bad_request"),
        (400, r#"{"error":"registry.ollama.ai/library/gemma3 does not support tools"}"#, "bad_request"),
        (500, r#"{"error":"the input length exceeds the context length"}"#, "context_overflow"),
        (
            503,
            r#"{"error":"server busy, please try again. maximum pending requests exceeded"}"#,
            "overloaded",
        ),
        // OpenRouter
        (402, r#"{"error":{"code":402,"message":"Insufficient credits"}}"#, "no_quota"),
        (
            403,
            r#"{"error":{"code":403,"message":"Your chosen model requires moderation and your input was flagged","metadata":{"reasons":["violence"]}}}"#,
            "content_filter",
        ),
        (
            502,
            r#"{"error":{"code":502,"message":"Provider returned error","metadata":{"raw":"upstream is away","provider_name":"X"}}}"#,
            "overloaded",
        ),
        (
            400,
            r#"{"error":{"code":400,"message":"Provider returned error","metadata":{"raw":"{\"message\":\"This endpoint's maximum context length is 8192 tokens\"}"}}}"#,
            "context_overflow",
        ),
        // llama.cpp, vLLM, LM Studio, gateways
        (
            400,
            r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":8192}}"#,
            "context_overflow",
        ),
        (503, r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#, "overloaded"),
        (
            400,
            r#"{"object":"error","message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","code":400}"#,
            "context_overflow",
        ),
        (
            400,
            r#"{"error":"Trying to keep the first 9000 tokens when context the overflows."}"#,
            "context_overflow",
        ),
        (422, r#"{"detail":[{"loc":["body","tools"],"msg":"field required"}]}"#, "bad_request"),
        (
            400,
            r#"[{"error":{"code":400,"message":"The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]"#,
            "context_overflow",
        ),
        (429, r#"{"message":"Too many tokens, please wait before trying again."}"#, "rate_limited"),
        (502, "<html><head><title>502 Bad Gateway</title></head></html>", "overloaded"),
        (413, "<html><head><title>413 Request Entity Too Large</title></head></html>", "context_overflow"),
        (404, "<!DOCTYPE html><html><head><title>Not Found</title></head></html>", "protocol"),
        (402, "", "no_quota"),
        (404, "", "bad_request"),
        (429, "", "rate_limited"),
        (504, "", "overloaded"),
    ];
    for (status, body, expected) in cases {
        let error = model_error_for_response(status, &[], body);
        assert_eq!(error.error_kind_name(), expected, "{status} {body}: {error}");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
    }
}

#[test]
fn errors_inside_a_stream_are_mapped_without_a_status() {
    let cases = [
        (
            json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
            "overloaded",
        ),
        (json!({"type": "error", "code": "rate_limit_exceeded", "message": "slow down"}), "rate_limited"),
        (json!({"error": {"code": "server_error", "message": "oops"}}), "overloaded"),
        (json!({"error": {"code": 429, "message": "limited upstream"}}), "rate_limited"),
        (json!({"error": {"code": 401, "message": "No cookie auth credentials found"}}), "authentication"),
        (json!({"error": {"code": "context_length_exceeded", "message": "…"}}), "context_overflow"),
        (json!({"error": {"message": "prompt is too long"}}), "context_overflow"),
        (json!({"error": "an error was encountered while running the model"}), "overloaded"),
        (json!({"error": {"type": "invalid_request_error", "message": "no"}}), "bad_request"),
    ];
    for (value, expected) in cases {
        let error = model_error_from_body(&value, &SecretRedactor::default());
        assert_eq!(error.error_kind_name(), expected, "{value}: {error}");
    }
}

#[test]
fn the_wait_is_read_from_any_header() {
    let now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
    let requested = |pairs: &[(&'static str, &str)]| {
        let all = pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        requested_retry_delay(&all, now)
    };
    let seconds = |number: f64| Some(Duration::from_secs_f64(number));
    assert_eq!(requested(&[("retry-after", "20")]), seconds(20.0));
    assert_eq!(requested(&[("retry-after", "1.5")]), seconds(1.5));
    assert_eq!(requested(&[("retry-after", "20"), ("retry-after-ms", "250")]), seconds(0.25));
    assert_eq!(requested(&[("retry-after", "Sun, 22 Nov 2026 10:01:30 GMT")]), seconds(90.0));
    assert_eq!(requested(&[("retry-after", "Sunday, 22-Nov-26 10:01:30 GMT")]), seconds(90.0), "RFC 850");
    assert_eq!(requested(&[("retry-after", "Sun Nov 22 10:01:30 2026")]), seconds(90.0), "asctime");
    assert_eq!(requested(&[("retry-after", "Sun, 22 Nov 2026 11:01:30 +0100")]), seconds(90.0));
    assert_eq!(requested(&[("retry-after", "Sun, 22 Nov 2026 09:00:00 GMT")]), seconds(0.0));
    assert_eq!(requested(&[("retry-after", "soon")]), None);
    assert_eq!(requested(&[("retry-after", "1e9")]), seconds(86_400.0), "a day is the most");
    assert_eq!(requested(&[("retry-after", "Sun, 22 Nov 2099 10:01:30 GMT")]), seconds(86_400.0));
    assert_eq!(requested(&[("retry-after", "-1")]), None);
    let openai = [
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "6m0s"),
        ("x-ratelimit-remaining-tokens", "10"),
        ("x-ratelimit-reset-tokens", "1h"),
    ];
    assert_eq!(requested(&openai), seconds(360.0));
    let anthropic = [
        ("anthropic-ratelimit-input-tokens-remaining", "0"),
        ("anthropic-ratelimit-input-tokens-reset", "2026-11-22T10:00:12Z"),
    ];
    assert_eq!(requested(&anthropic), seconds(12.0));
    let epoch = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1795341604000")];
    assert_eq!(requested(&epoch), seconds(4.0));
    assert_eq!(requested(&[("x-ratelimit-reset-tokens", "17ms")]), None, "part of the limit may remain");
    assert_eq!(requested(&[]), None);
}

#[test]
fn an_overload_that_requests_a_wait_stays_an_overload() {
    let wait = |text: &str| parse_retry_delay_in_message(text);
    assert_eq!(wait("Please try again in 1.5s. Visit …"), Some(Duration::from_millis(1_500)));
    assert_eq!(wait("Please try again in 20ms."), Some(Duration::from_millis(20)));
    assert_eq!(wait("try again in 6 seconds"), Some(Duration::from_secs(6)));
    assert_eq!(wait("try again in a moment"), None);
    assert_eq!(wait("İ try again in  ü ééé"), None);
    for (status, message) in [(503, "503 Service Unavailable"), (529, "529")] {
        let error = model_error_for_response(status, &[("retry-after", "30.2")], "");
        assert_eq!(error.retry_after(), Some(Duration::from_millis(30_200)));
        let text = error.to_string();
        let expected = format!("the model's provider is overloaded (try again in 31 s): {message}");
        assert!(text.starts_with(&expected), "{text}");
    }
}

#[test]
fn messages_are_truncated_and_redirects_explain_the_fix() {
    let error = model_error_for_response(400, &[], &"word ".repeat(100_000));
    assert!(error.to_string().chars().count() < 1_100, "{}", error.to_string().len());
    let error = model_error_for_response(308, &[("location", "https://elsewhere.example/v1")], "");
    assert_eq!(error.error_kind_name(), "protocol");
    assert!(error.to_string().contains("elsewhere.example"), "{error}");
    assert!(error.to_string().contains("set the base URL"), "{error}");
}
