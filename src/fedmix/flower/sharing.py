"""The client's part of the exchange on Flower, for any ClientApp.

Flower may start a new process for every message; what must last is in the context's state.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

import flwr
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedmix.core.errors import BadInput, ClientFailure, described
from fedmix.core.rng import SecretNoise, stream
from fedmix.core.types import Array
from fedmix.core.validation import instance, whole
from fedmix.exchange import Exchange, Means, release
from fedmix.exchange.pool import to_shares
from fedmix.flower import wire
from fedmix.flower.logs import log, log_here
from fedmix.flower.owner import Given, Owner, note
from fedmix.flower.refusals import Refused, refusal
from fedmix.flower.terms import check_exchange, check_named
from fedmix.flower.wire import Rejected
from fedmix.functional import MeanPool

Encode: TypeAlias = Callable[[Array], Tensor]
Act: TypeAlias = Callable[[Owner, Message, Context], RecordDict | Message]
Call: TypeAlias = Callable[[Message, Context], Message]
MOST_EPOCHS = 1 << 32  # an epoch numbers the versions of a client's data
PRIVATE = {"_call", "_mods", "_registered_funcs"}  # Flower's, in which an app has its functions
POOL, HELD = "fedmix.pool", "fedmix.held"


def share_means(
    app: ClientApp,
    samples: Callable[[Context], Given],
    exchange: Exchange,
    *,
    classes: int | None = None,
    experiment: str = "",
    seed: int = 0,
) -> None:
    """Let an app send means of its samples, and get the pool; its own functions stay as they are.

    It answers the messages of `WithMeans`: the roll call (`query.join`), means (`query.means`), a
    secure sum (`query.sum`) and the pool (`query.pool`). A node's configuration gives the number of
    its client (`partition-id`), and may give a `policy` file. If an answer fails, or the app's own
    training does, the error stays in the node's log, and the server gets one of
    `fedmix.flower.refusals.REASONS`.

    Args:
        app: The app, with functions of `@app.train()`.
        samples: Returns the samples of a node: a pair (inputs, labels), batches of such pairs
            without augmentation, or `fedmix.data.alone(...)`. It is called for every message, so
            that changed data are noticed.
        exchange: What is sent; the server's must be the same.
        classes: Number of classes if labels are integers; None for vectors.
        experiment: Names what the app trains; the server's must be the same.
        seed: Draws the groups. Noise is the client's own.

    Raises:
        BadInput: The app has a `client_fn` or shares means already, or a setting is none that a
            federation can do.
    """
    instance("app", app, ClientApp, "give the app itself: app = ClientApp()")
    if not callable(samples):
        raise BadInput(f"`samples` is {described(samples)}; give a function of the node's context")
    if classes is not None:
        whole("classes", classes)
    check_named(experiment, seed)
    check_exchange(exchange)
    Sharing(samples, exchange, classes, experiment, seed).join_in(app)


def received_means(context: Context) -> MeanPool | None:
    """Return the means that this client may draw, as they were sent; None before they came."""
    instance("context", context, Context, "give the context that the app's function gets")
    record = context.state.get(POOL)
    if not isinstance(record, ArrayRecord):
        return None
    return MeanPool(*(torch.from_numpy(record[name].numpy()) for name in ("x", "y")))


def held(context: Context) -> int:
    """Return the version of the pool that this client holds; 0 for none."""
    record = context.state.get(HELD)
    return int(str(record["version"])) if isinstance(record, ConfigRecord) else 0


@dataclass(frozen=True)
class Sharing:
    """How an app's clients share means; see `share_means`.

    Attributes:
        hidden: Returns the encoder of hidden states of which means are taken in every round, given
            a message with weights (None: under initial weights, for their shape).
        rounds: Number of rounds, for means of hidden states.
        check: Raises an error if a client cannot take part; called in the roll call.
    """

    samples: Callable[[Context], Given]
    exchange: Exchange | None
    classes: int | None = None
    experiment: str = ""
    seed: int = 0
    hidden: Callable[[Owner, RecordDict | None], Encode] | None = None
    rounds: int = 0
    check: Callable[[Owner], object] = lambda _: None

    def join_in(self, app: ClientApp) -> None:
        """Register the answers, and see to it that every update says who sends it.

        Mods of the app, which are made for weights, are not put around the answers.
        """
        if not vars(app).keys() >= PRIVATE:
            raise BadInput(
                f"share_means registers its answers beside an app's functions, and Flower "
                f"{flwr.__version__} keeps these elsewhere; install a version that fedmix[flower] "
                "allows"
            )
        if app._call is not None:
            raise BadInput(
                "share_means needs an app with functions of @app.train(), and this one is made of "
                "a client_fn; see docs/flower-own-app.md"
            )
        if "query.join" in app._registered_funcs:
            raise BadInput("this app shares means already; call share_means once")
        mods, before = app._mods, list(app._registered_funcs.items())
        app._mods = []
        self.answer_queries(app)
        app._mods = [self._around, *mods]
        for name, function in before:
            app._registered_funcs[name] = partial(self._around, call_next=function)

    def answer_queries(self, app: ClientApp) -> None:
        """Register the answers to what the server asks besides training."""
        for name, act in (
            ("join", self._join),
            ("means", self._send_means),
            ("sum", self._add_mean),
            ("pool", self._keep_pool),
        ):
            app.query(name)(self.guarded(act))

    def _around(self, message: Message, context: Context, call_next: Call) -> Message:
        if message.metadata.message_type.startswith("train"):
            return self.guarded(lambda _, *asked: call_next(*asked))(message, context)
        return sealed(call_next)(message, context)

    def guarded(self, act: Act) -> Call:
        """Return a function of Flower that loads the owner first, and says in its reply who it is.

        Weights leave the client only if its policy lets them.
        """

        def handle(message: Message, context: Context) -> Message:
            owner = Owner.of(context, self.samples, self.classes, self.exchange, self.experiment)
            trains = message.metadata.message_type.startswith("train")
            if trains:
                owner.policy.check_weights(owner.account)
            reply = act(owner, message, context)
            if isinstance(reply, RecordDict):
                reply = Message(reply, reply_to=message)
            if reply.has_content():
                if trains:
                    owner.send_weights(reply.content)
                reply.content[wire.OURS] = owner.presence(held(context))
            return reply

        return sealed(handle)

    def _join(self, owner: Owner, message: Message, context: Context) -> RecordDict:  # noqa: ARG002
        """Answer a roll call with what client and server must have in common."""
        self.check(owner)
        said = "this node is client %s of experiment %s, with %s samples, under fedmix %s"
        log.info(said, owner.client, owner.terms.experiment, owner.samples, owner.terms.fedmix)
        return RecordDict({"terms": owner.terms.content()})

    def _send_means(self, owner: Owner, message: Message, context: Context) -> RecordDict:
        """Release means as agreed, or as a stricter policy says; never as a message says.

        For the same data a run gets the same answer, whatever it asks later: a server could compute
        samples from means over other groups or under other noise. Means of hidden states are new in
        every round, with one answer per round.

        Raises:
            Refused: No means are exchanged, or only sums, or the round or epoch is not valid, or
                the policy forbids the release.
            Rejected: The message is not as agreed.
        """
        agreed, asked = self._agreed(), message.content
        if agreed.secure:
            raise Refused("sums only")
        how = owner.policy.applied(agreed, owner.client, owner.samples)
        if self.hidden:
            question = f"round {self._new_round(asked, context)}"
        else:
            question = json.dumps([owner.digest, asdict(owner.policy)])
        about, answer = f"fedmix.about {question}", f"fedmix.means {question}"
        if about not in context.state:
            epoch = _first_epoch(owner.digest, asked, context)
            means = self._release(owner, how, self._encoder(owner, asked), epoch)
            classed = owner.data.classes is not None
            if means and classed and agreed.clip is None and how.clip is not None:
                # the server expects shares, since it asked for no clipping
                means = means._replace(y=to_shares(means.y))
            m = how.group_size(owner.client, owner.samples) if means else 0
            context.state[answer] = wire.pack(means._asdict() if means else {})
            # the server does not learn how much noise the policy adds
            context.state[about] = ConfigRecord({"m": m, "noise": float(agreed.noise)})
        return RecordDict({"about": context.state[about], "means": context.state[answer]})

    def _add_mean(self, owner: Owner, message: Message, context: Context) -> RecordDict:
        """Answer a step of secure aggregation, in which the client adds its masked mean to a sum.

        Raises:
            Refused: There are no secure sums, the client is below the cut-off, the step is not as
                agreed, or the policy forbids the release.
        """
        agreed = self._agreed()
        if not agreed.secure:
            raise Refused("no sums")
        how = owner.policy.applied(agreed, owner.client, owner.samples)
        if owner.samples < how.cutoff:
            raise Refused("cut-off")
        from fedmix.flower import secagg  # Flower's older API, which nothing else needs

        def mean() -> list[Any]:
            means = self._release(owner, how, owner.data.units)
            assert means is not None
            return [part[0].numpy() for part in means]

        return secagg.take_step(message, context, agreed, mean)

    def _keep_pool(self, owner: Owner, message: Message, context: Context) -> RecordDict:
        """Take the pool; raise Refused or Rejected if it is not as agreed."""
        agreed, asked, data = self._agreed(), message.content, owner.data
        version = wire.said(asked, "version", int)
        like = Means(self._encoder(owner, None)(data.x[:1]), data.labels(data.y[:1]))
        pool = wire.read_pool(asked, like, entries=agreed.exclude_own)
        entries = pool.pop("entries", None)
        mine = pool if entries is None else {name: part[entries] for name, part in pool.items()}
        context.state[POOL] = wire.pack(mine)
        context.state[HELD] = ConfigRecord({"version": version})
        log.info("version %s of the pool came, with %s means", version, len(mine["x"]))
        return RecordDict()

    def _agreed(self) -> Exchange:
        if self.exchange is None:
            raise Refused("no means")
        return self.exchange

    def _release(self, owner: Owner, how: Exchange, encode: Encode, epoch: int = 0) -> Means | None:
        owner.policy.check_release(owner.account)
        data, y = owner.data, owner.data.labels(owner.data.y)
        grouping = stream(self.seed, "split", owner.client, epoch)
        # a server that knew the noise could subtract it
        means = release(owner.client, data.x, y, how, encode, grouping, SecretNoise())
        if means is not None:
            owner.release(means, how)
        return means

    def _encoder(self, owner: Owner, asked: RecordDict | None) -> Encode:
        """Return the function of which means are taken: samples in units, or hidden states."""
        return self.hidden(owner, asked) if self.hidden else owner.data.units

    def _new_round(self, asked: RecordDict, context: Context) -> int:
        """Check and return the round of a question about hidden states.

        A round after the last one answered takes its place, and the old answer is deleted. Raises
        Refused if the round is before the last one answered.
        """
        round_ = valid_round(asked, self.rounds)
        before = context.state.get("fedmix.answered")
        last = before["round"] if isinstance(before, ConfigRecord) else -1
        assert isinstance(last, int)
        if round_ < last:
            raise Refused("over")
        if round_ > last:
            for what in ("about", "means"):
                context.state.pop(f"fedmix.{what} round {last}", None)
            context.state["fedmix.answered"] = ConfigRecord({"round": round_})
        return round_


def sealed(call: Call) -> Call:
    """Return a function of Flower whose errors stay in the node's log: they may hold data."""

    def handle(message: Message, context: Context) -> Message:
        log_here()
        try:
            return call(message, context)
        except Exception as error:
            note(error)
            return Message(_refusal(error), reply_to=message)

    return handle


def _refusal(error: Exception) -> RecordDict:
    """Return the reply that tells the server why the client refuses."""
    if isinstance(error, ClientFailure):
        return refusal("step", step=error.step)
    if isinstance(error, Refused):
        return refusal(error.reason)
    return refusal("message" if isinstance(error, Rejected) else "failed")


def valid_round(asked: RecordDict, rounds: int) -> int:
    """Return the round of a question; raise Refused if the experiment has no such round."""
    round_ = int(wire.said(asked, "round", int))
    if not 0 <= round_ < rounds:
        raise Refused("round")
    return round_


def _first_epoch(digest: int, asked: RecordDict, context: Context) -> int:
    """Return the first epoch that the server gave for these data, so that groups stay the same."""
    known = context.state.get("fedmix.epochs")
    epochs = dict(known) if isinstance(known, ConfigRecord) else {}
    epoch = epochs.setdefault(str(digest), wire.said(asked, "epoch", int))
    assert isinstance(epoch, int)
    if not 0 <= epoch < MOST_EPOCHS:
        raise Refused("epoch")
    context.state["fedmix.epochs"] = ConfigRecord(epochs)
    return epoch
