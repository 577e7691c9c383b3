//! baton-openai
