//! baton-routing
