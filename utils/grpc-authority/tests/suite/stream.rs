//! The wrapper around a connection.

use std::io::ErrorKind;

use grpc_authority::{AuthorityError, AuthorityStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::frames::{PREFACE, fields, frame, hex};

fn call() -> Vec<u8> {
    let block = hex("8386 4107 2f612e736f636b");
    [PREFACE, &frame(1, 4, 1, &block), &frame(0, 1, 1, &vec![7; 20_000])].concat()
}

#[tokio::test]
async fn a_server_reads_another_authority_and_its_answer_passes() {
    let (mut client, server) = duplex(1000);
    let mut server = AuthorityStream::new(server);
    let sent = call();
    let writes = tokio::spawn(async move {
        for byte in sent.chunks(7) {
            client.write_all(byte).await.unwrap();
        }
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    });
    let mut got = Vec::new();
    server.read_to_end(&mut got).await.unwrap();
    assert_eq!(fields(&got)[0][2].1, "localhost");
    assert!(got.ends_with(&[7; 20_000]));
    server.write_all(b"/any.sock").await.unwrap();
    server.shutdown().await.unwrap();
    drop(server);
    assert_eq!(writes.await.unwrap(), b"/any.sock");
}

#[tokio::test]
async fn what_came_before_a_fault_is_read_first() {
    let (mut client, server) = duplex(1 << 16);
    let mut server = AuthorityStream::new(server);
    let ping = frame(6, 0, 0, b"pingpong");
    client.write_all(&[PREFACE, &ping, &frame(9, 4, 1, b"")].concat()).await.unwrap();
    let mut got = vec![0; PREFACE.len() + ping.len()];
    server.read_exact(&mut got).await.unwrap();
    assert!(got.ends_with(&ping));
    for _ in 0..2 {
        let error = server.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let fault = error.get_ref().unwrap().downcast_ref::<AuthorityError>();
        assert_eq!(fault, Some(&AuthorityError::Unexpected { stream: 1 }));
    }
}
