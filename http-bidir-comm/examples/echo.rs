//! An echo of tasks: the server gives a client texts, and the client sends each back in capitals.
//!
//! * `echo` runs both in one process.
//! * `echo server SOCKET` and `echo client SOCKET [NAME]` are programs of their own. Start as many
//!   clients as you like, under names of their own, and start either side again whenever you like.

use std::error::Error;
use std::io::{Write, stdout};
use std::path::Path;
use std::time::Duration;

use http_bidir_comm::ClientName;
use http_bidir_comm::client::{
    BlockingHttpClient, ClientError, Endpoint, Stop, TaskClient, TaskClientSettings, Transport,
};
use http_bidir_comm::server::{PeerListener, SameUser, TaskServer, serve};
use poem::Route;
use serde::{Deserialize, Serialize};

/// What the server wants of a client.
#[derive(Serialize, Deserialize)]
enum Task {
    Shout(String),
    Count(String),
}

/// What a client answers.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Answer {
    Shouted(String),
    Counted(usize),
}

/// The client's side: a blocking loop, in any thread of any program.
fn client(socket: &Path, name: &ClientName, stop: &Stop) -> Result<(), ClientError> {
    let http = BlockingHttpClient::new(Endpoint::Unix(socket.to_owned()));
    let settings =
        TaskClientSettings { transport: Transport::EventStream, ..TaskClientSettings::default() };
    TaskClient::with_settings(http, "/tasks", name.clone(), settings)
        .on_failure(|error, pause| {
            let _ = writeln!(stdout(), "{error}; another try in {pause:?}");
        })
        .run(stop, |task| match task {
            Task::Shout(text) => Answer::Shouted(text.to_uppercase()),
            Task::Count(text) => Answer::Counted(text.chars().count()),
        })
}

/// The server's side: routes of a Poem application, and a handle that sends tasks.
async fn listen(socket: &Path) -> Result<TaskServer<Task, Answer>, Box<dyn Error>> {
    let tasks = TaskServer::new(SameUser);
    let listener = PeerListener::bind(socket, 0o600)?;
    tokio::spawn(serve(listener, Route::new().nest("/tasks", tasks.routes())));
    Ok(tasks)
}

/// Sends both kinds of tasks to a client, and waits for the answers.
async fn ask(
    tasks: &TaskServer<Task, Answer>,
    client: &ClientName,
    text: &str,
) -> Result<(Answer, Answer), Box<dyn Error>> {
    let within = Duration::from_secs(60);
    // Both are on their way before either is waited for.
    let shout = tasks.send(client, &Task::Shout(text.to_owned()), within)?;
    let count = tasks.send(client, &Task::Count(text.to_owned()), within)?;
    Ok((shout.result().await?, count.result().await?))
}

/// Gives each client that comes a pair of tasks every second.
async fn server(socket: &Path) -> Result<(), Box<dyn Error>> {
    let tasks = listen(socket).await?;
    loop {
        for client in tasks.clients() {
            // A client that goes away is no reason to stop.
            match ask(&tasks, &client, &format!("hello, {client}")).await {
                Ok(answers) => writeln!(stdout(), "{client}: {answers:?}")?,
                Err(problem) => writeln!(stdout(), "{client}: {problem}")?,
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Both sides; the client blocks a thread of its own.
async fn both(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("socket");
    let name: ClientName = "echo".parse()?;
    let tasks = listen(&socket).await?;
    let stop = Stop::new();
    let (name_of_client, stopping) = (name.clone(), stop.clone());
    let running = tokio::task::spawn_blocking(move || client(&socket, &name_of_client, &stopping));
    tasks.arrival(&name).await;
    let (shouted, counted) = ask(&tasks, &name, "hello").await?;
    writeln!(out, "{shouted:?}, {counted:?}")?;
    stop.stop();
    // The end of the stream wakes the client.
    tasks.remove(&name);
    Ok(running.await??)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => both(&mut stdout()).await,
        ["server", socket] => server(Path::new(socket)).await,
        ["client", socket] => Ok(client(Path::new(socket), &"echo".parse()?, &Stop::new())?),
        ["client", socket, name] => Ok(client(Path::new(socket), &name.parse()?, &Stop::new())?),
        _ => Err("usage: echo | echo server SOCKET | echo client SOCKET [NAME]".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn echoes() {
        let mut out = Vec::new();
        both(&mut out).await.unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "Shouted(\"HELLO\"), Counted(5)\n");
    }
}
