"""What is a secret in a text, and what only looks like one. The values are made here, so that no scanner takes them for real."""

import random
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_shared import credentials

ANY = string.ascii_letters + string.digits
UPPER = string.ascii_uppercase + "234567"
HEX = "0123456789abcdef"
_random = random.Random(7)


def made(characters: str, count: int) -> str:
    return "".join(_random.choices(characters, k=count))


def jwt() -> str:
    return f"eyJ{made(ANY, 30)}.eyJ{made(ANY, 60)}.{made(ANY + '-_', 43)}"


def pem(kind: str, end: str = "\n") -> str:
    lines = end.join(made(ANY + "+/", 64) for _ in range(4))
    return f"-----BEGIN {kind}PRIVATE KEY-----{end}{lines}{end}-----END {kind}PRIVATE KEY-----"


# Each as the service makes them: prefix, alphabet and length.
TOKENS = {
    "AWS id": f"AK{'IA'}{made(UPPER, 16)}",
    "STS id": f"AS{'IA'}{made(UPPER, 16)}",
    "AWS session token": f"IQoJb3JpZ2lu{'X2Vj'}{made(ANY + '+/', 300)}==",
    "AWS old session token": f"FwoGZXIvYXdz{'EJr'}{made(ANY + '+/', 300)}=",
    **{f"GitHub {kind}": f"gh{kind}_{made(ANY, 36)}" for kind in "pousr"},
    "GitHub fine-grained": f"github_{'pat'}_{made(ANY, 22)}_{made(ANY, 59)}",
    "GitLab": f"gl{'pat'}-{made(ANY, 20)}",
    "GitLab runner": f"gl{'rt'}-{made(ANY, 20)}",
    "Hugging Face": f"h{'f'}_{made(ANY, 34)}",
    "OpenAI old": f"s{'k'}-{made(ANY, 20)}T3BlbkFJ{made(ANY, 20)}",
    "OpenAI project": f"s{'k'}-proj-{made(ANY + '-_', 150)}",
    "OpenAI service account": f"s{'k'}-svcacct-{made(ANY + '-_', 100)}",
    "Anthropic": f"s{'k'}-ant-api03-{made(ANY + '-_', 93)}AA",
    "OpenRouter": f"s{'k'}-or-v1-{made(HEX, 64)}",
    "Slack bot": f"xo{'xb'}-{made(string.digits, 12)}-{made(string.digits, 12)}-{made(ANY, 24)}",
    "Slack user": f"xo{'xp'}-{made(string.digits, 12)}-{made(string.digits, 12)}-{made(ANY, 32)}",
    "Slack app": f"xa{'pp'}-1-A{made(UPPER, 10)}-{made(string.digits, 13)}-{made(HEX, 64)}",
    "Google API key": f"AI{'za'}{made(ANY + '-_', 35)}",
    "Google OAuth": f"ya{'29'}.{made(ANY + '-_', 150)}",
    "Google client secret": f"GOC{'SPX'}-{made(ANY + '-_', 28)}",
    "NGC": f"nv{'api'}-{made(ANY + '-_', 64)}",
    "Stripe": f"s{'k'}_live_{made(ANY, 24)}",
    "Stripe restricted": f"r{'k'}_test_{made(ANY, 40)}",
    "npm": f"np{'m'}_{made(ANY, 36)}",
    "PyPI": f"py{'pi'}-AgEIcHlwaS5vcmc{made(ANY + '-_', 150)}",
    "Docker": f"dc{'kr'}_pat_{made(ANY + '-_', 27)}",
    "Databricks": f"da{'pi'}{made(HEX, 32)}",
    "Azure storage": f"{made(ANY + '+/', 86)}==",
    "Groq": f"gs{'k'}_{made(ANY, 52)}",
    "Replicate": f"r{'8'}_{made(ANY, 37)}",
    "SendGrid": f"S{'G'}.{made(ANY + '-_', 22)}.{made(ANY + '-_', 43)}",
    "Vault": f"hv{'s'}.{made(ANY + '-_', 90)}",
    "DigitalOcean": f"do{'p'}_v1_{made(HEX, 64)}",
    "GitLab runner registration": f"GR{'1348941'}{made(ANY, 20)}",
    "Atlassian": f"ATA{'TT3'}{made(ANY + '-_=', 180)}",
    "Hugging Face organization": f"api_{'org'}_{made(ANY, 34)}",
    "OpenAI session": f"ses{'s'}-{made(ANY, 40)}",
    "Neptune": f"eyJ{'hcGlf'}{made(ANY, 120)}",
    "W&B": f"wan{'db'}_v1_{made(ANY, 60)}",
    "xAI": f"xa{'i'}-{made(ANY, 80)}",
    "Perplexity": f"ppl{'x'}-{made(ANY, 48)}",
    "Together": f"tg{'p'}_v1_{made(ANY + '-_', 43)}",
    "Kaggle": f"KG{'AT'}_{made(HEX, 32)}",
    "Google refresh token": f"1/{'/0'}{made(ANY + '-_', 60)}",
    "Azure client secret": f"{made(ANY, 3)}8Q~{made(ANY, 34)}",
    "Grafana": f"gl{'c'}_{made(ANY, 80)}",
    "Grafana service account": f"gl{'sa'}_{made(ANY, 32)}_{made(HEX, 8)}",
    "Tailscale": f"ts{'key'}-auth-{made(ANY, 20)}",
    "Stripe webhook": f"wh{'sec'}_{made(ANY, 32)}",
    "age": f"AGE-SECRET-{'KEY'}-1{made(string.ascii_uppercase + string.digits, 58)}",
    "Twilio": f"S{'K'}{made(HEX, 32)}",
    "Mailgun": f"ke{'y'}-{made(HEX, 32)}",
    "Mailchimp": f"{made(HEX, 32)}-u{'s'}12",
    "Brevo": f"xkey{'sib'}-{made(HEX, 64)}-{made(ANY, 16)}",
    "Brevo SMTP": f"xsmtp{'sib'}-{made(HEX, 64)}-{made(ANY, 16)}",
    "Linear": f"lin_{'api'}_{made(ANY, 40)}",
    "Figma": f"fig{'d'}_{made(ANY + '-_', 40)}",
    "Notion": f"nt{'n'}_{made(ANY, 46)}",
    "Notion old": f"secre{'t'}_{made(ANY, 42)}7",
    **{f"Shopify {kind}": f"shp{kind}_{made(HEX, 32)}" for kind in ("at", "ss", "ca", "pa")},
    "Heroku": f"HR{'KU'}-AA{made(ANY + '-_', 58)}",
    "Doppler": f"d{'p'}.pt.{made(ANY, 43)}",
    "Doppler service": f"d{'p'}.st.dev_x.{made(ANY, 43)}",
    "PlanetScale": f"pscale_{'tkn'}_{made(ANY + '-_.', 43)}",
    "PlanetScale password": f"pscale_{'pw'}_{made(ANY + '-_.', 43)}",
    "New Relic": f"NR{'AK'}-{made(UPPER, 27)}",
    "Pulumi": f"pu{'l'}-{made(HEX, 40)}",
    "Terraform Cloud": f"{made(ANY, 14)}.atlas{'v1'}.{made(ANY + '-_=', 67)}",
    "Postman": f"PM{'AK'}-{made(HEX, 24)}-{made(HEX, 34)}",
    "JWT": jwt(),
    "RSA key": pem("RSA "),
    "key": pem(""),
    "OpenSSH key": pem("OPENSSH "),
    "key in JSON": pem("", "\\n"),
}
AROUND = [
    "{}",
    "--token={}",
    "a {} b",
    '"{}"',
    "'{}'",
    "https://host/x?key={}&b=c",
    "({})",
    "export X={}",
    "x: {}",
    "[{}]",
    "{},",
]


def token_problems(token: str, text: str) -> list[str]:
    """What is wrong with the covered form of `text`, which contains `token`."""
    pieces = [token[at : at + 8] for at in range(12, len(token) - 8, 8)]
    shown = credentials.covered(text)
    problems = [f"shows {piece}" for piece in pieces if piece in shown]
    if credentials.NOT_SHOWN not in shown:
        problems.append("covers nothing")
    if not credentials.holds(text):
        problems.append("holds no secret")
    if not any(pattern.search(text) for pattern in credentials.REFUSED):
        problems.append("is not refused")
    if credentials.covered(shown) != shown:
        problems.append("is covered twice")
    return problems


def test_tokens_are_known_by_their_form() -> None:
    texts = {(kind, around): around.format(token) for kind, token in TOKENS.items() for around in AROUND}
    problems = {place: token_problems(TOKENS[place[0]], text) for place, text in texts.items()}
    assert {place: problem for place, problem in problems.items() if problem} == {}


SECRET = made(ANY + "+/", 40)
WANDB = made(HEX, 40)
# What stands around a secret that has no form of its own.
PLACES = [
    "aws_secret_access_key = {}",
    "AWS_SECRET_ACCESS_KEY={}",
    "export AWS_SECRET_ACCESS_KEY='{}'",
    'AWS_SECRET_ACCESS_KEY: "{}"',
    "AWS_SESSION_TOKEN={}",
    "WANDB_API_KEY={}",
    "env WANDB_API_KEY={} lt-train",
    "--export=ALL,WANDB_API_KEY={},X=1",
    "-e HF_TOKEN={}",
    "HF_TOKEN: {}",
    "MY_DB_PASSWORD={}",
    "SERVICE_SECRET_2={}",
    "GITHUB_TOKEN_CI={}",
    "{{'api_key': '{}', 'a': 1}}",
    '{{"private_key": "{}"}}',
    '{{"clientSecret": "{}"}}',
    '{{"secretAccessKey": "{}"}}',
    "--wandb-api-key {}",
    "--token {}",
    "--password '{} with words'",
    "curl -u user:{} https://host",
    "curl --user user:{} https://host",
    "WANDB_API_KEY={} wandb login",
    "https://user:{}@host/x",
    "postgres://user:{}@host:5432/db",
    "s3://KEY:{}@bucket/x",
    "Authorization: Bearer {}",
    "authorization: Basic {}==",
    "'Authorization': 'Bearer {}'",
    "-H 'Authorization: token {}'",
    "x-api-key: {}",
    "Bearer {}",
    "https://hooks.slack.com/services/T00000000/B00000000/{}",
    "https://discord.com/api/webhooks/123456789/{}",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=x",
    "Endpoint=sb://a/;SharedAccessKey={}",
    "https://a.blob.core.windows.net/c?sv=2022&sig={}%3D",
    "https://b.s3.amazonaws.com/k?X-Amz-Signature={}",
    f"AS{'IA'}{made(UPPER, 16)}:{{}}",
    f"AK{'IA'}{made(UPPER, 16)} {{}}",
    '{{"name": "WANDB_API_KEY", "value": "{}"}}',
    "{{'name': 'X_TOKEN', 'value': '{}'}}",
    '{{\\"name\\": \\"X_TOKEN\\", \\"value\\": \\"{}\\"}}',
    "- name: X_TOKEN value: {}",
    "- name: X_TOKEN\n  value: {}",
    "- {{name: X_TOKEN, value: {}}}",
    '{{\\"api_key\\": \\"{}\\"}}',
    '{{\\\\\\"api_key\\\\\\": \\\\\\"a {}\\\\\\"}}',
    '{{\\"api_key\\": \\"a\\\\\\" {}\\"}}',
    '{{\\"Authorization\\": \\"Basic {}\\"}}',
    '{{\\"x-api-key\\": \\"{}\\"}}',
    'env TOKEN=\\"a {}\\" x',
    '--password "a\\"{}"',
    '--password "a {}',
    "TOKEN='a\\'{}'",
    "curl -u 'bob:a {}' https://host",
    'curl --user="bob:a {}" https://host',
    'curl -u bob:"a {}" https://host',
    "['curl', '-u', 'bob:a {}', 'https://host']",
    "['x', '--token', '{}', '-v']",
    "api_key: a7{}",
    "  wandb_api_key: a7{}\n",
    "password: a7{}",
    "password: 'a {}'",
]


def test_secrets_are_known_by_what_stands_before_them() -> None:
    failures = []
    for secret in (SECRET.replace("/", "x").replace("+", "y"), WANDB):
        for place in PLACES:
            shown = credentials.covered(place.format(secret))
            if secret in shown or secret[8:24] in shown or credentials.covered(shown) != shown:
                failures.append((place, shown))
    assert failures == []


HARMLESS = [
    f"commit {made(HEX, 40)}",
    f"HEAD is now at {made(HEX, 40)} Fix it",
    f"sha256:{made(HEX, 64)}",
    f"nvcr.io/nvidia/pytorch:24.07@sha256:{made(HEX, 64)}",
    f"checksum {made(HEX, 64)}  model.safetensors",
    f"md5 {made(HEX, 32)}",
    "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "GPU-3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "sk-learn-1.2.3",
    "sk-tiny-llama-7b-instruct-v2-chat-hf-gguf",
    "risk-proj-alpha-2024-12-01-final-report-v2",
    "task-1234567890abcdef1234567890abcdef1234",
    "hf_transformers_checkpoints",
    "training/llama/hf_llama3_2_1b_seq8k_gpu_p5x1_pretrain.yaml",
    "npm_config_registry=https://registry.npmjs.org",
    "loss per token: 2.51",
    "tokens: 1000000",
    "max_tokens=4096",
    "TOKENS_PER_STEP=4194304",
    "--seq-length 4096 --tokens-per-expert 12",
    "tokenizer=llama3",
    "--tokenizer-model /fsx/tokenizer.model",
    "eos_token=</s>",
    "'bos_token': '<s>'",
    "pad_token_id=0",
    "HF_TOKEN_PATH=/root/.cache/huggingface/token",
    "HF_TOKEN=$HF_TOKEN",
    "HF_TOKEN=${HF_TOKEN}",
    "--password-file /etc/x",
    "the secret of training: patience",
    "signature verification failed",
    "http://host:9000/a@b",
    "docker://ubuntu:22.04@sha256:abc",
    "s3://bucket/x@y:z@w",
    "/fsx/run:1@2",
    "-u 1000:1000",
    "iteration 100/ 1000 | lm loss: 2.1E+00 | grad norm: 0.5 |",
    "NCCL_SOCKET_IFNAME=eth0 CUDA_VISIBLE_DEVICES=0,1",
    "-----BEGIN CERTIFICATE-----",
    "eyJhbGciOiJIUzI1NiJ9",
    "AKIA is the prefix of keys",
    f"SK{made(HEX, 40)}",
    f"pip-key-{made(HEX, 32)}",
    f"{made(HEX, 32)}-us1-east",
    f"secret_{'of' * 22}",
    "api_key: str",
    "def f(api_key: str = None, password: str = '', token: 'str' = None): ...",
    "api_key: Optional[str] = None",
    "api_key: os.environ['KEY12345']",
    "private_key: /etc/keys/a1b2c3d4.pem",
    "password: incorrect, 3 attempts of 10",
    "access_key: required",
    "token: 128000",
    "unknown token: llama3word",
    "docker run -u '1000:1000' x",
    "['-u', '1000:1000']",
    "curl -u 'bob:$PASSWORD' x",
    "['--eos-token', '7', '--token', '--x']",
    "name: a value: b",
    '{"name": "X_TOKENS", "value": "y"}',
    '{"name": "X_TOKEN", "value": null}',
    '{"name": "X_TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}',
    "def f(api_key: 'str | None' = None)",
    '{\\"api_key\\": \\"\\"}',
    '{\\"api_key\\": \\"$KEY\\"}',
    'token="',
]


def test_what_only_looks_like_a_secret() -> None:
    assert [(text, credentials.covered(text)) for text in HARMLESS if credentials.covered(text) != text] == []
    assert [text for text in HARMLESS if any(pattern.search(text) for pattern in credentials.REFUSED)] == []


@pytest.mark.parametrize(
    "word",
    ["bos", "eos", "eod", "eot", "pad", "unk", "mask", "sep", "cls", "per", "next", "last", "first", "end", "image", "start"],
)
def test_a_token_of_a_text_is_no_secret(word: str) -> None:
    for text in (f"{word}_token=7", f"--{word}-token 7", f"'{word}_token': 'x'", f"{word.upper()}_TOKEN=7"):
        assert credentials.covered(text) == text
    assert not credentials.is_secret(f"{word}_token")
    assert credentials.is_secret(f"{word}x_token")


def test_what_is_no_text_stays() -> None:
    for value in (None, 7, 2.5, True, ["a", 7, None], {"a": None, "b": [1]}):
        assert credentials.covered(value) == value
        assert not credentials.holds(value)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("wandb_api_key", True), ("api-key", True), ("AWS_SECRET_ACCESS_KEY", True), ("DB_PASSWORD_2", True),
        ("tokenizer", False), ("tokens", False), ("HF_TOKEN_PATH", False), ("eos_token", False), ("key", False),
    ],
)  # fmt: skip
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert credentials.is_secret(name) is secret


def test_nested_values() -> None:
    found = credentials.covered([{"name": "HF_TOKEN", "value": "x"}, {"name": "A", "value": "1"}, {"api_key": "x", "b": ["c"]}])
    assert found == [
        {"name": "HF_TOKEN", "value": "(not shown)"},
        {"name": "A", "value": "1"},
        {"api_key": "(not shown)", "b": ["c"]},
    ]


@given(st.text(), st.sampled_from(sorted(TOKENS)), st.text())
def test_covering_twice_changes_nothing_more(before: str, kind: str, after: str) -> None:
    shown = credentials.covered(f"{before} {TOKENS[kind]} {after}")
    assert credentials.covered(shown) == shown
    assert TOKENS[kind] not in shown


@pytest.mark.parametrize("name", ["token", "access_token", "api_key", "password", "X-My-Secret", "auth-token", "Key_secret"])
def test_a_parameter_of_a_url(name: str) -> None:
    for before in ("https://host/a.jsonl?", "https://host/a.jsonl?page=2&"):
        text = f"{before}{name}=abcDEF123&next=3: no such file"
        assert credentials.without_tokens(text) == f"{before}{name}=(not shown)&next=3: no such file"
        assert credentials.without_tokens(credentials.without_tokens(text)) == credentials.without_tokens(text)
        assert credentials.QUERY.search(text)


@pytest.mark.parametrize(
    "text",
    ["https://host/a?page=2&eos_token=5", "https://host/a?tokens=8", "is it? token=5", "a?key=b&c=d", "s3://b/x?token=$TOKEN"],
)
def test_other_parameters_of_a_url(text: str) -> None:
    assert credentials.without_tokens(text) == text
    assert not any(pattern.search(text) for pattern in credentials.REFUSED)


@pytest.mark.parametrize(
    "piece",
    [
        "-", "_", "a-", "key-", "secret_", "name_token", "token_", " ", "\\", '"', "name: ", "name: token ", 'token="',
        'token=\\"', "token=\"x\n",
        '"token": "', "api_key: ", 'api_key: "a', "-u ", "-u 'a:", "'--token', ", '-u "a:\\', "authorization: ",
    ],
)  # fmt: skip
def test_a_long_line_takes_a_time_that_grows_with_its_length(piece: str) -> None:
    """Not with the square of it: that would be half a minute. A megabyte of the worst takes ten seconds."""
    text = (piece * (1 << 20))[:100_000]
    begin = time.process_time()
    credentials.covered(text)
    assert time.process_time() - begin < 5


REPEATED = [
    "://a:", "://", "https://", "http://a:b", "://a:@", "x@://a:", "@sha256:", "-----BEGIN ", "?a.a.", "--a-", 'password="',
    "A_TOKEN", "bearer a", "eyJaaaaaaaa.", "a.", "-u a", "x-api-key", "'",
]  # fmt: skip


@pytest.mark.parametrize("repeated", REPEATED)
def test_a_long_text_costs_in_proportion_to_its_length(repeated: str) -> None:
    """A line of a log may repeat the begin of a secret. A quadratic search takes 16 times as long for 4 times the text."""

    def cpu_seconds(characters: int) -> float:
        text = (repeated * (characters // len(repeated) + 1))[:characters]
        begin = time.process_time()
        credentials.covered(text)
        return time.process_time() - begin

    small, large = min(cpu_seconds(15_000) for _ in range(2)), cpu_seconds(60_000)
    assert large < 8 * small + 0.5


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:p@h http://v:q@h", "http://(not shown)@h http://(not shown)@h"),
        ("http://u:a@b://c:d@h/x", "http://(not shown)@h/x"),
        ("http://h:80/x http://u:p/q@h", "http://h:80/x http://(not shown)@h"),
        ("x@://a:1/b@c", "x@://a:1/b@c"),
        ("docker://r:tag@sha256:0a", "docker://r:tag@sha256:0a"),
        ("docker://u:p@r:tag@sha256:0a", "docker://(not shown)@r:tag@sha256:0a"),
        ("docker://u:p@q@r:tag@sha256:0a", "docker://(not shown)@r:tag@sha256:0a"),
        ("docker://u:p@sha256.host/x", "docker://(not shown)@sha256.host/x"),
    ],
)
def test_a_password_goes_to_the_last_at_of_its_word(text: str, shown: str) -> None:
    assert credentials.covered(text) == shown
    assert bool(credentials.PASSWORD.search(text)) == (text != shown)


def test_a_text_without_a_word_of_a_name_needs_no_search_for_names() -> None:
    """Each pattern that needs a name before the secret matches only texts with such a word."""
    named = [
        "x_token=abc1",
        "X-Api-Key: abc1",
        'name: "a_secret" value: "b1"',
        "DB_PASSWORD: abc1",
        "--passphrase abc1",
        "pwd=abc1",
    ]
    for text in named:
        assert credentials.covered(text) != text
        assert credentials.covered(text.upper()) != text.upper() or text.startswith(("name", "--"))
    # The Kelvin sign is a k in another case.
    assert credentials.covered("api_\u212aey=abc1def2") == f"api_\u212aey={credentials.NOT_SHOWN}"
