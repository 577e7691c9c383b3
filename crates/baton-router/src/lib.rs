//! baton-router
