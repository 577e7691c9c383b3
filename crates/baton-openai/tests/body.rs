//! The editable body: what is not edited stays byte for byte.

use baton_openai::body::MAX_MEMBERS;
use baton_openai::{Body, BodyError, RawJson};
use bytes::Bytes;
use proptest::prelude::*;

fn body(text: &str) -> Body {
    Body::parse(Bytes::copy_from_slice(text.as_bytes()), 1 << 20).unwrap()
}

fn refusal(text: impl AsRef<[u8]>) -> BodyError {
    Body::parse(Bytes::copy_from_slice(text.as_ref()), 1 << 20).unwrap_err()
}

fn text(body: &Body) -> String {
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

fn raw(text: &str) -> RawJson {
    RawJson::parse(text.to_owned()).unwrap()
}

const ODD: &str = concat!(
    " \n{ \"model\" : \"m\\u00e9\\ud83d\\ude42\" ,\t\"content\":null, \"x\\u0079\":1.50e+01,\"big\":123456789012345678901234567890,",
    "\"s\": \"\\/ \\ud800 é🙂\",\"neg\":-0.0,\"deep\":{ \"b\" : [ 1 , {} ] , \"a\":0 } }\r\n"
);

#[test]
fn an_untouched_body_is_the_same_bytes() {
    for same in [ODD, "{}", " { } ", "{\"\":{}}", "{ \"a\" :1}"] {
        assert_eq!(text(&body(same)), same);
        assert_eq!(body(same).len(), same.len());
    }
}

#[test]
fn edits_touch_their_member_only() {
    let mut edited = body(ODD);
    edited.set("content", raw("[ 1 ]"));
    assert_eq!(edited.remove("neg"), Some(raw("-0.0")));
    edited.set("n\"w", raw("true"));
    let expected = ODD
        .replace("\"content\":null", "\"content\":[ 1 ]")
        .replace("\"neg\":-0.0,", "")
        .replace("\"a\":0 } }", "\"a\":0 } ,\"n\\\"w\":true}");
    assert_eq!(text(&edited), expected);
    serde_json::from_str::<serde_json::Value>(&expected.replace("\\ud800", "")).unwrap();
}

#[test]
fn members_can_come_and_go_until_none_is_left() {
    let mut edited = body(" { } ");
    edited.set("a", raw("1"));
    assert_eq!(text(&edited), " {\"a\":1 } ");
    edited.set("b", raw("2"));
    edited.remove("a");
    assert_eq!(text(&edited), " {\"b\":2 } ");
    edited.remove("b");
    assert!(edited.is_empty());
    assert_eq!(text(&edited), " { } ");
}

#[test]
fn keys_are_compared_as_decoded() {
    assert_eq!(body(ODD).get("xy"), Some(&raw("1.50e+01")));
    assert_eq!(refusal(r#"{"a":1,"\u0061":2}"#), BodyError::Duplicate("a".into()));
}

#[test]
fn what_is_no_plain_object_is_refused() {
    for bad in
        ["", "[]", "null", "{", "{\"a\":1,}", "{\"a\":1}x", "{a:1}", "{\"a\":NaN}", "{\"a\" 1}", "\u{feff}{}"]
    {
        assert!(matches!(refusal(bad), BodyError::Json(_)), "{bad}");
    }
    // A key that no reader can compare, and bytes that are no UTF-8.
    assert!(matches!(refusal(r#"{"\ud800":1}"#), BodyError::Json(_)));
    assert!(matches!(refusal(b"{\"a\":\"\xff\"}"), BodyError::Json(_)));
    assert!(matches!(refusal("{".repeat(100_000)), BodyError::Json(_)));
}

#[test]
fn size_and_members_are_bounded() {
    let members = |n: usize| (0..n).map(|i| format!("\"{i}\":0")).collect::<Vec<_>>().join(",");
    assert!(Body::parse(format!("{{{}}}", members(MAX_MEMBERS)).into(), 1 << 20).is_ok());
    assert_eq!(refusal(format!("{{{}}}", members(MAX_MEMBERS + 1))), BodyError::TooManyMembers);
    assert_eq!(refusal(format!("{{{}}}", members(9 * MAX_MEMBERS))), BodyError::TooManyMembers);
    let error = Body::parse(Bytes::from_static(b"{\"a\":1}"), 6).unwrap_err();
    assert_eq!(error, BodyError::TooLarge { bytes: 7, limit: 6 });
    assert_eq!(baton_openai::ApiError::from(error).status(), 413);
}

#[test]
fn very_deep_values_do_not_overflow_the_stack() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
    assert_eq!(text(&body(&deep)), deep);
}

#[test]
fn what_the_router_asks_for_is_read() {
    let b = body(r#"{"stream":true,"model":"m","n":2,"cache_salt":"s","prompt":["a","b"]}"#);
    assert_eq!((b.stream(), b.n(), b.prompt_count()), (Ok(true), Ok(2), 2));
    assert_eq!((b.model(), b.cache_salt()), (Ok(Some("m".into())), Ok(Some("s".into()))));
    let b = body(r#"{"stream":null,"n":null,"model":null}"#);
    assert_eq!((b.stream(), b.n(), b.model(), b.prompt_count()), (Ok(false), Ok(1), Ok(None), 1));
    assert_eq!(body(r#"{"stream":"yes"}"#).stream().unwrap_err().param.as_deref(), Some("stream"));
    assert_eq!(body(r#"{"n":-1}"#).n().unwrap_err().status(), 400);
}

#[test]
fn prompts_are_counted() {
    for (prompt, count) in
        [("\"[1,[\"", 1), ("[ 1, 2]", 1), ("[\n[1],[2],[3]]", 3), ("[]", 0), ("[\"a\"]", 1), ("null", 1)]
    {
        assert_eq!(body(&format!("{{\"prompt\": {prompt}}}")).prompt_count(), count, "{prompt}");
    }
}

#[test]
fn values_are_shared_with_the_received_bytes() {
    let received = Bytes::from(format!("{{\"prompt\":\"{}\"}}", "x".repeat(1000)));
    let prompt = Body::parse(received.clone(), 1 << 20).unwrap();
    let value = prompt.get("prompt").unwrap().as_bytes().as_ptr() as usize;
    let range = received.as_ptr_range();
    assert!((range.start as usize..range.end as usize).contains(&value));
}

fn white() -> impl Strategy<Value = String> {
    "[ \t\r\n]{0,2}"
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        Just("-0.0".to_owned()),
        Just("1E+2".to_owned()),
        Just("\"\\u00E9\\ud800 \\/ ,}{\"".to_owned()),
        Just("[ {\"a\" : 1}, [ ] ]".to_owned()),
        "\"[a-z é🙂,:}]{0,8}\"",
        "-?[1-9][0-9]{0,25}(\\.[0-9]{1,5})?",
    ]
}

/// The text of each member with its white space, and its value.
fn members() -> impl Strategy<Value = Vec<(String, String, String)>> {
    let member = (white(), white(), white(), value(), white());
    prop::collection::vec(member, 1..8).prop_map(|members| {
        let number = |(i, (a, b, c, v, d)): (usize, (String, String, String, String, String))| {
            // Every other key is written with an escape.
            let key = if i % 2 == 0 { format!("\\u006b{i}") } else { format!("k{i}") };
            (format!("{a}\"{key}\"{b}:{c}"), v, d)
        };
        members.into_iter().enumerate().map(number).collect()
    })
}

fn join(members: &[(String, String, String)]) -> String {
    let inner: Vec<String> = members.iter().map(|(a, b, c)| format!("{a}{b}{c}")).collect();
    format!("{{{}}}", inner.join(","))
}

proptest! {
    #[test]
    fn every_edit_changes_only_what_it_names(mut members in members(), which in any::<prop::sample::Index>(), new in value()) {
        let whole = join(&members);
        let mut edited = body(&whole);
        prop_assert_eq!(text(&edited), &whole[..]);
        let i = which.index(members.len());
        let name = format!("k{i}");
        prop_assert_eq!(edited.get(&name).unwrap().as_str(), &members[i].1);
        members[i].1 = new.clone();
        edited.set(&name, raw(&new));
        prop_assert_eq!(text(&edited), join(&members));
        members.remove(i);
        prop_assert_eq!(edited.remove(&name), Some(raw(&new)));
        if !members.is_empty() {
            prop_assert_eq!(text(&edited), join(&members));
        }
    }

    #[test]
    fn any_bytes_are_a_body_or_an_error(bytes in prop::collection::vec(prop_oneof![
        Just(b'{'), Just(b'}'), Just(b'"'), Just(b':'), Just(b','), Just(b'['), Just(b']'), Just(b'1'), Just(b'\\'), any::<u8>()
    ], 0..24)) {
        if let Ok(parsed) = Body::parse(Bytes::from(bytes.clone()), 1 << 10) {
            prop_assert_eq!(&parsed.to_bytes()[..], &bytes[..]);
        }
    }
}

#[test]
fn the_elements_of_a_list_are_the_text_they_are() {
    assert_eq!(
        raw(r#"[ {"a" : 1.0} ,"é\u00e9", [],3 ] "#).elements(4),
        Some(vec![r#"{"a" : 1.0}"#, r#""é\u00e9""#, "[]", "3"])
    );
    assert_eq!(raw("[]").elements(0), Some(vec![]));
    assert_eq!(raw("[1,2,3]").elements(2), None, "too many");
    for other in ["{}", "null", "\"[1]\"", "7"] {
        assert_eq!(raw(other).elements(9), None, "{other}");
    }
}
