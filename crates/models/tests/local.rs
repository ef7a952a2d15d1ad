//! A real small model behind an OpenAI-compatible server, used through all layers of the crate. `MILLRACE_TEST_LLM` is
//! its address, such as `http://127.0.0.1:8081/v1`; without it the tests are skipped with a message.

use std::sync::Arc;

use millrace_models::model::{AnswerSchema, Message, Model, Reply, Request, ToolResult, ToolSpec};
use millrace_models::selection::{ModelSelection, StructuredMode};
use millrace_models::{ModelFactory, factory};
use millrace_protocol::result::{PlanProposal, TaskResult, Verdict};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

fn model(structured: StructuredMode) -> Option<Arc<dyn Model>> {
    let Ok(address) = std::env::var("MILLRACE_TEST_LLM") else {
        println!("skipped: MILLRACE_TEST_LLM is not set (such as http://127.0.0.1:8081/v1)");
        return None;
    };
    let mut selection = ModelSelection::parse(&format!("openai-compatible:local@{address}")).unwrap();
    let settings = &mut selection.models[0].settings;
    settings.structured = structured;
    settings.temperature = Some(0.0);
    settings.extra_body.insert("seed".into(), 1.into());
    factory::check_selection(&selection, &|_| None).unwrap();
    Some(ModelFactory::default().create(&selection, &|_| None).unwrap())
}

fn request() -> Request {
    let weather = json!({
        "type": "object",
        "properties": { "city": { "type": "string", "description": "The name of a city." } },
        "required": ["city"],
        "additionalProperties": false,
    });
    let answer = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string" },
            "degrees": { "type": "integer", "minimum": -90, "maximum": 60 },
            "verdict": { "enum": ["warm", "cold"] },
        },
        "required": ["city", "degrees", "verdict"],
        "additionalProperties": false,
    });
    Request {
        system: "You answer questions about the weather. Look it up with the tool; never guess.".into(),
        messages: vec![Message::User { text: "Look up the weather in Bern.".into() }],
        tools: vec![ToolSpec {
            name: "get_weather".into(),
            description: "The weather of a city.".into(),
            schema: weather.into(),
        }],
        answer: Some(AnswerSchema { name: "weather".into(), schema: answer }),
        max_output_tokens: 200,
        ..Request::default()
    }
}

async fn ask(model: &dyn Model, request: &Request) -> Reply {
    model.reply(request, &()).await.unwrap()
}

fn continued(request: &Request, reply: &Reply, result: &str) -> Request {
    let mut request = request.clone();
    let calls = reply.calls.clone();
    request.messages.push(Message::Assistant {
        text: reply.text.clone(),
        calls,
        provider_state: reply.provider_state.clone(),
    });
    for call in &reply.calls {
        let result =
            ToolResult { call_id: call.id.clone(), text: result.into(), is_error: false, images: Vec::new() };
        request.messages.push(Message::Tool(result));
    }
    request
}

fn check_answer(reply: &Reply) {
    let answer: Value = serde_json::from_str(&reply.text).unwrap_or_else(|_| panic!("{reply:?}"));
    assert_eq!(answer["degrees"], 31, "{reply:?}");
    assert!(answer["city"].is_string() && answer["verdict"].is_string(), "{reply:?}");
}

#[tokio::test]
async fn a_small_model_calls_a_tool_and_gives_a_structured_answer() {
    let Some(model) = model(StructuredMode::Auto) else { return };
    let request = request();
    let first = ask(&*model, &request).await;
    let call = first.calls.first().unwrap_or_else(|| panic!("{first:?}"));
    assert_eq!(call.name, "get_weather");
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
    assert!(arguments["city"].as_str().unwrap().contains("Bern"), "{call:?}");
    assert!(first.usage.input_tokens > 0 && first.usage.output_tokens > 0);
    let second = ask(&*model, &continued(&request, &first, "31 degrees Celsius, sunny, warm")).await;
    check_answer(&second);
}

#[tokio::test]
async fn a_small_model_gives_a_structured_answer_without_tools() {
    for structured in [StructuredMode::Auto, StructuredMode::Envelope, StructuredMode::Prompt] {
        let Some(model) = model(structured) else { return };
        let mut request = Request { tools: Vec::new(), ..request() };
        request.messages =
            vec![Message::User { text: "In Bern it is 31 degrees and sunny. Sum up the weather.".into() }];
        check_answer(&ask(&*model, &request).await);
    }
}

#[tokio::test]
async fn tool_calls_written_as_text_by_a_small_model_count() {
    let Some(model) = model(StructuredMode::Auto) else { return };
    let request = Request { answer: None, ..request() };
    let reply = ask(&*model, &request).await;
    assert_eq!(reply.calls.first().map(|call| call.name.as_str()), Some("get_weather"), "{reply:?}");
}

/// The schemas of agents' answers, as they are sent to a model.
fn real_forms() -> [(&'static str, Value); 3] {
    [("plan", form::<PlanProposal>()), ("research", form::<TaskResult>()), ("verdict", form::<Verdict>())]
}

fn form<A: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<A>().to_value()
}

#[tokio::test]
async fn the_server_s_grammar_supports_the_schemas_of_agents() {
    let Some(model) = model(StructuredMode::Auto) else { return };
    for (name, schema) in real_forms() {
        for tools in [request().tools, Vec::new()] {
            let answer = Some(AnswerSchema { name: name.into(), schema: schema.clone() });
            let request = Request { answer, tools, max_output_tokens: 40, ..request() };
            let reply = model.reply(&request, &()).await;
            assert!(reply.is_ok(), "{name}: {reply:?}");
        }
    }
}
