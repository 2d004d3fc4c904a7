//! Rights on topics, given and taken by the requests of the protocol: the client library has none for them.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

/// `CreateAcls` and `DeleteAcls`. What is to be made and what is to be deleted are described alike.
const CREATE: i16 = 30;
const DELETE: i16 = 31;
/// The version of both.
const VERSION: i16 = 1;

const TOPIC: u8 = 2;
const LITERAL: u8 = 3;
const WRITE: u8 = 4;
const ALLOW: u8 = 3;

/// From now on, or soon, this user may write to this topic.
pub(crate) fn give(server: SocketAddr, user: &str, topic: &str) {
    ask(server, CREATE, user, topic);
}

/// And no longer.
pub(crate) fn take(server: SocketAddr, user: &str, topic: &str) {
    ask(server, DELETE, user, topic);
}

fn ask(server: SocketAddr, request: i16, user: &str, topic: &str) {
    let text = |text: &str| [&i16::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat();
    let (number, no_client, one) = (7_i32.to_be_bytes(), (-1_i16).to_be_bytes(), 1_i32.to_be_bytes());
    let body = [
        &request.to_be_bytes()[..],
        &VERSION.to_be_bytes(),
        &number,
        &no_client,
        &one,
        &[TOPIC],
        &text(topic),
        &[LITERAL],
        &text(&format!("User:{user}")),
        &text("*"),
        &[WRITE, ALLOW],
    ]
    .concat();
    let mut stream = TcpStream::connect(server).unwrap();
    stream.write_all(&u32::try_from(body.len()).unwrap().to_be_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    // Size, number, throttle time, how many answers; and the code of the only one.
    let mut answer = [0; 18];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((&answer[4..8], &answer[12..16]), (&number[..], &one[..]), "it is the answer to this: {answer:?}");
    assert_eq!(answer[16..], [0, 0], "the server refuses: {answer:?}");
}
