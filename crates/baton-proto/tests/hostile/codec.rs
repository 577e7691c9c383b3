//! Every byte string is one message or a fault, and a message has one byte string.

use baton_proto::codec::{self, Notification};

pub fn play(data: &[u8]) {
    if let Ok(message) = codec::decode(data) {
        assert_eq!(codec::encode(&message), data, "{message:?}");
    }
    if let Ok(notification) = Notification::decode(data) {
        assert_eq!(notification.encode(), data, "{notification:?}");
    }
}
