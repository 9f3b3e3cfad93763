"""Java's own HttpClient, which offers `Upgrade: h2c` with every request, against a real server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from scripted_server import DEADLINE_S, LiveServer, chat

needs_java = pytest.mark.skipif(
    shutil.which("javac") is None, reason="needs a Java compiler: apt-get install default-jdk-headless (Debian, Ubuntu)"
)

SOURCE = """
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

public class Ask {
    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int i = 1; i < args.length; i++) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(args[0]))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(args[i]))
                .build();
            var response = client.send(request, BodyHandlers.ofLines());
            System.out.println(response.statusCode() + " " + response.version());
            response.body().forEach(System.out::println);
        }
    }
}
"""


@pytest.mark.slow
@needs_java
def test_javas_http_client_is_answered(server: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "Ask.java").write_text(SOURCE)
    url = f"{server.url}/v1/chat/completions"
    bodies = [json.dumps(chat("say:ok", stream=stream)) for stream in (False, True)]
    for command in (["javac", "Ask.java"], ["java", "-cp", ".", "Ask", url, *bodies]):
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=4 * DEADLINE_S, check=False
        )
        assert done.returncode == 0, done.stderr
    whole, _, streamed = done.stdout.partition("200 HTTP_1_1\n")[2].partition("200 HTTP_1_1\n")
    assert '"content":"ok"' in whole
    assert streamed.startswith("data: {")
    assert streamed.rstrip().endswith("data: [DONE]")
