//! Writing one answer: whole, or chunk by chunk, for either API.

use baton_types::{KvTransferParams, TokenId};

use crate::response::{Choice, Completion, Endpoint, FinishReason, Message, StopReason, Usage};

/// What every chunk of one answer repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub endpoint: Endpoint,
    /// From [`Endpoint::answer_id`].
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The name under which the model is served.
    pub model: String,
}

/// The ids that `return_token_ids` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReturnedIds {
    pub prompt: Vec<TokenId>,
    pub answer: Vec<TokenId>,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub reason: FinishReason,
    /// The stop string that was met.
    pub stop_string: Option<String>,
    /// The handle, if this was a leg of a hand-off.
    pub kv_transfer_params: Option<KvTransferParams>,
}

impl Answer {
    /// The answer to a request that did not ask for a stream.
    pub fn whole(&self, text: String, ending: Ending, usage: Usage, ids: Option<ReturnedIds>) -> Completion {
        let mut choice = Choice {
            finish_reason: Some(ending.reason),
            stop_reason: ending.stop_string.map(StopReason::Text),
            ..Choice::default()
        };
        match self.endpoint {
            Endpoint::Chat => {
                choice.message = Some(Message { role: Some("assistant".to_owned()), content: Some(text) });
            }
            Endpoint::Completions => choice.text = Some(text),
        }
        let mut answer = self.envelope(false, vec![choice]);
        if let Some(ids) = ids {
            answer.choices[0].token_ids = Some(ids.answer);
            self.put_prompt_ids(&mut answer, ids.prompt);
        }
        answer.usage = Some(usage);
        answer.kv_transfer_params = ending.kv_transfer_params;
        answer
    }

    /// The chunk before any text: a chat's role, and the prompt's ids if they are to be returned. `None` if there is
    /// nothing to say (completions without ids).
    pub fn first(&self, prompt_ids: Option<Vec<TokenId>>) -> Option<Completion> {
        if self.endpoint == Endpoint::Completions && prompt_ids.is_none() {
            return None;
        }
        let mut chunk = self.delta(String::new(), None);
        if let Some(delta) = &mut chunk.choices[0].delta {
            delta.role = Some("assistant".to_owned());
        }
        if let Some(ids) = prompt_ids {
            self.put_prompt_ids(&mut chunk, ids);
        }
        Some(chunk)
    }

    /// A chunk that adds `text`, and the ids of the tokens it came from if they are to be returned.
    pub fn delta(&self, text: String, ids: Option<Vec<TokenId>>) -> Completion {
        let mut choice = Choice { token_ids: ids, ..Choice::default() };
        match self.endpoint {
            Endpoint::Chat => choice.delta = Some(Message { role: None, content: Some(text) }),
            Endpoint::Completions => choice.text = Some(text),
        }
        self.envelope(true, vec![choice])
    }

    /// The chunk with the finish reason and, at top level, the handle. `text` is what is left to say.
    pub fn finish(&self, text: String, ids: Option<Vec<TokenId>>, ending: Ending) -> Completion {
        let mut chunk = self.delta(text, ids);
        let choice = &mut chunk.choices[0];
        if let Some(delta) = &mut choice.delta
            && delta.content.as_deref() == Some("")
        {
            delta.content = None;
        }
        choice.finish_reason = Some(ending.reason);
        choice.stop_reason = ending.stop_string.map(StopReason::Text);
        chunk.kv_transfer_params = ending.kv_transfer_params;
        chunk
    }

    /// The chunk behind the finish chunk that `stream_options.include_usage` asks for.
    pub fn usage(&self, usage: Usage) -> Completion {
        let mut chunk = self.envelope(true, Vec::new());
        chunk.usage = Some(usage);
        chunk
    }

    fn envelope(&self, chunk: bool, choices: Vec<Choice>) -> Completion {
        Completion {
            id: self.id.clone(),
            object: self.endpoint.object(chunk).to_owned(),
            created: self.created,
            model: self.model.clone(),
            choices,
            usage: None,
            prompt_token_ids: None,
            kv_transfer_params: None,
        }
    }

    /// vLLM's places: at top level for a chat, in the choice for a completion.
    fn put_prompt_ids(&self, completion: &mut Completion, ids: Vec<TokenId>) {
        match self.endpoint {
            Endpoint::Chat => completion.prompt_token_ids = Some(ids),
            Endpoint::Completions => completion.choices[0].prompt_token_ids = Some(ids),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(endpoint: Endpoint) -> Answer {
        Answer { endpoint, id: endpoint.answer_id(0xab), created: 7, model: "m".into() }
    }

    fn json(completion: &Completion) -> String {
        serde_json::to_string(completion).unwrap()
    }

    fn length() -> Ending {
        Ending { reason: FinishReason::Length, stop_string: None, kv_transfer_params: None }
    }

    #[test]
    fn a_whole_chat_answer() {
        let got = answer(Endpoint::Chat).whole("hi".into(), length(), Usage::new(3, 1, 2), None);
        assert_eq!(
            json(&got),
            concat!(
                r#"{"id":"chatcmpl-000000000000000000000000000000ab","object":"chat.completion","created":7,"model":"m","#,
                r#""choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"logprobs":null,"#,
                r#""finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"#,
                r#""prompt_tokens_details":{"cached_tokens":2}}}"#
            )
        );
    }

    #[test]
    fn the_chunks_of_a_chat() {
        let a = answer(Endpoint::Chat);
        let choices = |chunk: &Completion| serde_json::to_string(&chunk.choices).unwrap();
        assert_eq!(
            choices(&a.first(None).unwrap()),
            r#"[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]"#
        );
        assert_eq!(
            choices(&a.delta("x".into(), Some(vec![TokenId(5)]))),
            r#"[{"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":null,"token_ids":[5]}]"#
        );
        let handle = KvTransferParams { do_remote_prefill: true, ..KvTransferParams::default() };
        let ending = Ending {
            reason: FinishReason::Stop,
            stop_string: Some("\n".into()),
            kv_transfer_params: Some(handle),
        };
        let finish = json(&a.finish(String::new(), None, ending));
        assert!(
            finish.contains(r#""delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":"\n""#),
            "{finish}"
        );
        assert!(
            finish
                .ends_with(r#"}],"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false}}"#)
        );
        let usage = json(&a.usage(Usage::new(1, 1, 0)));
        assert!(
            usage.contains(r#""object":"chat.completion.chunk""#)
                && usage.contains(r#""choices":[],"usage":{"#)
        );
    }

    #[test]
    fn completions_put_the_prompts_ids_into_the_choice() {
        let a = answer(Endpoint::Completions);
        assert_eq!(a.first(None), None);
        let first = a.first(Some(vec![TokenId(1)])).unwrap();
        assert_eq!(first.choices[0].prompt_token_ids, Some(vec![TokenId(1)]));
        let ids = ReturnedIds { prompt: vec![TokenId(1)], answer: vec![TokenId(2)] };
        let whole = a.whole("t".into(), length(), Usage::default(), Some(ids.clone()));
        assert_eq!(whole.object, "text_completion");
        assert_eq!((whole.text(), whole.finish_reason()), ("t", Some(FinishReason::Length)));
        assert_eq!(whole.choices[0].prompt_token_ids, Some(vec![TokenId(1)]));
        let chat = answer(Endpoint::Chat).whole("t".into(), length(), Usage::default(), Some(ids));
        assert_eq!(
            (chat.prompt_token_ids, chat.choices[0].token_ids.clone()),
            (Some(vec![TokenId(1)]), Some(vec![TokenId(2)]))
        );
    }

    #[test]
    fn vllms_answers_are_read() {
        let vllm = r#"{"id":"cmpl-probe-1","object":"text_completion","created":1795959227,"model":"smollm2","choices":[{"index":0,
            "text":".","logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,
            "prompt_token_ids":null,"routed_experts":null}],"service_tier":null,"usage":{"prompt_tokens":30,"total_tokens":31,
            "completion_tokens":1,"prompt_tokens_details":null},"kv_transfer_params":null,"metrics":null}"#;
        let read: Completion = serde_json::from_str(vllm).unwrap();
        assert_eq!((read.text(), read.finish_reason()), (".", Some(FinishReason::Length)));
        let unknown: FinishReason = serde_json::from_str("\"flagged\"").unwrap();
        assert_eq!(unknown, FinishReason::Other);
    }
}
