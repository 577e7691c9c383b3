mod conversations;
mod random;
mod script;
mod transcripts;
