//! A server that answers as it is told, on a thread of its own, and remembers when it wrote what.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep_until;

/// What becomes of one request.
#[derive(Clone, Debug)]
pub struct Behaviour {
    pub ttft: Duration,
    pub itl: Duration,
    /// None: as many as were asked for.
    pub tokens: Option<u32>,
    pub ending: StubEnding,
    pub cached_tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StubEnding {
    Finished,
    /// An error event behind the tokens, with status 200.
    ErrorEvent,
    /// A finish reason that says that the answer is void.
    FinishedInError,
    /// The connection is closed behind the tokens.
    Cut,
    /// Status 503.
    Refused,
    /// Status 200, and no stream.
    Rubbish,
    /// Nothing more ever comes behind the tokens.
    Silence,
}

impl Default for Behaviour {
    fn default() -> Self {
        let (ttft, itl) = (Duration::from_millis(20), Duration::from_millis(10));
        Self { ttft, itl, tokens: None, ending: StubEnding::Finished, cached_tokens: 0 }
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    /// In the order of arrival, from 0.
    pub number: usize,
    pub path: String,
    pub id: String,
    pub body: Value,
    pub at: Instant,
}

impl Asked {
    pub fn prompt_tokens(&self) -> u32 {
        match (&self.body["prompt"], &self.body["messages"]) {
            (Value::Array(tokens), _) => tokens.len() as u32,
            (_, Value::Array(messages)) => {
                let words =
                    |message: &Value| message["content"].as_str().unwrap_or_default().split(' ').count();
                messages.iter().map(words).sum::<usize>() as u32
            }
            _ => 0,
        }
    }
}

type Script = Arc<dyn Fn(&Asked) -> Behaviour + Send + Sync>;

#[derive(Clone)]
pub struct Stub {
    pub address: SocketAddr,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    asked: Mutex<Vec<Asked>>,
    /// From the request to each token, as it was really written.
    written: Mutex<BTreeMap<String, Vec<Duration>>>,
}

impl Stub {
    /// Runs until the process ends.
    pub fn start(script: impl Fn(&Asked) -> Behaviour + Send + Sync + 'static) -> Self {
        Self::listen("127.0.0.1:0", script)
    }

    pub fn listen(address: &str, script: impl Fn(&Asked) -> Behaviour + Send + Sync + 'static) -> Self {
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let stub = Self { address: listener.local_addr().unwrap(), seen: Arc::default() };
        let (serving, script): (_, Script) = (stub.clone(), Arc::new(script));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let Ok((socket, _)) = listener.accept().await else { continue };
                    let (stub, script) = (serving.clone(), script.clone());
                    tokio::spawn(async move { stub.serve(socket, script).await });
                }
            });
        });
        stub
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.seen.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// When the tokens of a request were written, since it came.
    pub fn written(&self, id: &str) -> Vec<Duration> {
        let written = self.seen.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.get(id).cloned().unwrap_or_default()
    }

    async fn serve(self, mut socket: TcpStream, script: Script) {
        let _ = socket.set_nodelay(true);
        let mut buffer = Vec::new();
        while let Some(request) = read_request(&mut socket, &mut buffer).await {
            // A client that has left is none of the stub's business.
            if self.answer(&mut socket, request, &script).await.is_err() {
                return;
            }
        }
    }

    async fn answer(&self, socket: &mut TcpStream, request: Request, script: &Script) -> std::io::Result<()> {
        let Request { path, id, body } = request;
        match path.as_str() {
            "/v1/models" => {
                return plain(
                    socket,
                    "200 OK",
                    &json!({"data": [{"id": "stub", "max_model_len": 100_000}]}).to_string(),
                )
                .await;
            }
            "/metrics" => return plain(socket, "200 OK", &self.page()).await,
            "/v1/completions" | "/v1/chat/completions" => {}
            _ => return plain(socket, "404 Not Found", "{}").await,
        }
        let asked = {
            let mut all = self.seen.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let asked = Asked { number: all.len(), path, id, body, at: Instant::now() };
            all.push(asked.clone());
            asked
        };
        let behaviour = script(&asked);
        self.stream(socket, &asked, &behaviour).await
    }

    fn page(&self) -> String {
        let count = self.seen.asked.lock().unwrap_or_else(PoisonError::into_inner).len();
        format!("# TYPE stub_requests_total counter\nstub_requests_total {count}\nstub_load 0.5\n")
    }

    async fn stream(&self, socket: &mut TcpStream, asked: &Asked, how: &Behaviour) -> std::io::Result<()> {
        match how.ending {
            StubEnding::Refused => {
                return plain(
                    socket,
                    "503 Service Unavailable",
                    r#"{"error":{"message":"The queue is full."}}"#,
                )
                .await;
            }
            StubEnding::Rubbish => return plain(socket, "200 OK", "data: <html>\n\n").await,
            _ => {}
        }
        socket
            .write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
            )
            .await?;
        let wanted = asked.body["max_tokens"].as_u64().unwrap_or(1) as u32;
        let tokens = how.tokens.unwrap_or(wanted);
        let chat = asked.path.contains("chat");
        for token in 0..tokens {
            sleep_until((asked.at + how.ttft + how.itl * token).into()).await;
            event(socket, &chunk(chat, &format!(" t{token}"), None)).await?;
            let mut written = self.seen.written.lock().unwrap_or_else(PoisonError::into_inner);
            written.entry(asked.id.clone()).or_default().push(asked.at.elapsed());
        }
        let reason = if tokens < wanted { "stop" } else { "length" };
        match how.ending {
            StubEnding::ErrorEvent => {
                event(socket, &json!({"error": {"message": "no memory", "code": 500}})).await?
            }
            StubEnding::FinishedInError => event(socket, &chunk(chat, "", Some("error"))).await?,
            StubEnding::Cut => return Err(std::io::ErrorKind::ConnectionReset.into()),
            StubEnding::Silence => std::future::pending().await,
            _ => {
                event(socket, &chunk(chat, "", Some(reason))).await?;
                event(socket, &usage(asked.prompt_tokens(), tokens, how.cached_tokens)).await?;
            }
        }
        write_chunk(socket, b"data: [DONE]\n\n").await?;
        socket.write_all(b"0\r\n\r\n").await
    }
}

fn chunk(chat: bool, text: &str, finish_reason: Option<&str>) -> Value {
    match chat {
        true => {
            json!({"id": "a", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]})
        }
        false => json!({"id": "a", "choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}),
    }
}

fn usage(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Value {
    json!({"id": "a", "choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens, "prompt_tokens_details": {"cached_tokens": cached_tokens}}})
}

async fn event(socket: &mut TcpStream, value: &Value) -> std::io::Result<()> {
    write_chunk(socket, format!("data: {value}\n\n").as_bytes()).await
}

async fn write_chunk(socket: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    socket.write_all(&chunk).await
}

async fn plain(socket: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all(format!("{head}{body}").as_bytes()).await
}

struct Request {
    path: String,
    id: String,
    body: Vec<u8>,
}

async fn read_request(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Request> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
            let header = |name: &str| {
                let line = head.lines().find(|line| line.starts_with(&format!("{name}:")))?;
                Some(line[name.len() + 1..].trim().to_owned())
            };
            let length: usize = header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            if buffer.len() >= end + 4 + length {
                let path = head.split(' ').nth(1)?.to_owned();
                let id = header("x-request-id").unwrap_or_default();
                let body = buffer[end + 4..end + 4 + length].to_vec();
                buffer.drain(..end + 4 + length);
                return Some(Request { path, id, body });
            }
        }
        let mut piece = [0; 16 << 10];
        match socket.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => buffer.extend_from_slice(&piece[..read]),
        }
    }
}
