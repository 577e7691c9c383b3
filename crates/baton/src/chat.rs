//! `baton chat`: a conversation in the terminal.

mod session;
mod terminal;
mod turn;

use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use baton_openai::FinishReason;
use baton_openai::models::ModelList;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::ChatArgs;
use crate::http::{self, Server};
use session::Session;
use terminal::Terminal;
use turn::Turn;

const COMMANDS: &str = "/reset forgets the conversation, /quit leaves; Ctrl-C stops an answer, Ctrl-D leaves";
const HINT: &str = "Start a system with `baton up`, or say with --url where one runs.";
/// What a shell reports of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// # Errors
/// If nothing answers at the address; in the middle of a conversation, errors are told and it goes on.
pub async fn chat(args: &ChatArgs) -> Result<ExitCode> {
    let server = Server::at(&args.url)?;
    let model = match &args.model {
        Some(model) => model.clone(),
        None => first_model(&server).await.map_err(|error| anyhow!("{error:#}\n{HINT}"))?,
    };
    let mut chat = Chat {
        session: Session::new(args, model.clone()),
        server,
        terminal: if args.once.is_some() { Terminal::without_input() } else { Terminal::new() },
        interrupt: signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?,
    };
    match &args.once {
        Some(question) => chat.once(question).await,
        None => chat.converse(&model).await,
    }
}

async fn first_model(server: &Server) -> Result<String> {
    let models: ModelList = http::read_json(server.get("/v1/models").await?).await?;
    Ok(models.data.into_iter().next().context("no model is served")?.id)
}

struct Chat {
    server: Server,
    session: Session,
    terminal: Terminal,
    interrupt: Signal,
}

enum Outcome {
    Answered(Turn),
    Interrupted,
}

impl Chat {
    async fn once(&mut self, question: &str) -> Result<ExitCode> {
        match self.turn(question).await? {
            Outcome::Answered(turn) => {
                self.note(&turn);
                Ok(ExitCode::SUCCESS)
            }
            Outcome::Interrupted => Ok(ExitCode::from(INTERRUPTED)),
        }
    }

    async fn converse(&mut self, model: &str) -> Result<ExitCode> {
        if self.terminal.is_interactive() {
            self.terminal.note(&format!("{model}. {COMMANDS}."));
        }
        loop {
            let line = tokio::select! {
                line = self.terminal.next_line() => line.context("standard input")?,
                _ = self.interrupt.recv() => None,
            };
            let Some(line) = line else { return Ok(ExitCode::SUCCESS) };
            match line.trim() {
                "" => {}
                "/quit" | "/exit" => return Ok(ExitCode::SUCCESS),
                "/reset" => {
                    self.session.reset();
                    self.terminal.note("The conversation is forgotten.");
                }
                command if command.starts_with('/') => self.terminal.note(COMMANDS),
                question => self.tell(question).await?,
            }
        }
    }

    /// One turn of a conversation that goes on whatever happens, if there is a person to decide.
    async fn tell(&mut self, question: &str) -> Result<()> {
        match self.turn(question).await {
            Ok(Outcome::Answered(turn)) => self.note(&turn),
            Ok(Outcome::Interrupted) => self.terminal.note("Stopped."),
            Err(error) if self.terminal.is_interactive() => self.terminal.note(&format!("{error:#}")),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Asks, shows the answer as it comes, and keeps of it what came.
    async fn turn(&mut self, question: &str) -> Result<Outcome> {
        let Self { server, session, terminal, interrupt } = self;
        let request = session.ask(question.to_owned())?;
        let mut answer = String::new();
        let mut on_text = |text: &str| {
            answer.push_str(text);
            terminal.answer(text);
        };
        let outcome = tokio::select! {
            turn = turn::ask(server, request, &mut on_text) => turn.map(Outcome::Answered),
            _ = interrupt.recv() => Ok(Outcome::Interrupted),
        };
        terminal.end_answer();
        session.keep(answer);
        outcome
    }

    fn note(&self, turn: &Turn) {
        let cut =
            if turn.finish_reason == Some(FinishReason::Length) { ", cut off at the limit" } else { "" };
        self.terminal.note(&format!("{}{cut}", turn.figures.line()));
    }
}
